"""What rounding inputs to 8 bits leaves of a GGUF model's logits, beside 16 bits.

    python -m bench.rounding model-Q4_K_M.gguf

Both are compared with the same file in float32, by torch: the relative error of logits, the KL in
nats, the share of tokens with the same likeliest one. Token ids are random, unless
`--token-ids FILE` has a JSON list.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Mapping
from pathlib import Path

import cyclopts
import torch
from torch.nn import functional

from bench.speculate import StepLog
from shared.gguf.checkpoint_folder import checkpoint_folder
from worker.engine.cpu.forward_batch import ForwardBatch, ForwardMode
from worker.engine.loading.engine_loader import EngineLoader
from worker.engine_link.engine_config import EngineConfig

PAGE_SIZE = 16
REFERENCE = {"dtype": "float32", "cpu_kernels": "torch"}
OURS = {
    activations: {"dtype": "bfloat16", "cpu_kernels": "native", "cpu_activations": activations}
    for activations in ("bfloat16", "int8")
}


def logits_of(model: Path, settings: Mapping[str, str], token_ids: torch.Tensor) -> torch.Tensor:
    """[num_tokens, vocab_size] float32."""
    values = {"model_path": str(model), "num_kv_tokens": 4096, "packed_weights": "off"} | settings
    loop = EngineLoader(EngineConfig.from_json(json.dumps(values)), StepLog()).load()
    forward = loop._engine._steps._runner._forward
    places = torch.arange(len(token_ids))
    pages = torch.arange(-(-len(token_ids) // PAGE_SIZE), dtype=torch.int32)
    batch = ForwardBatch(
        ForwardMode.EXTEND,
        token_ids,
        positions=places,
        out_loc=places,
        query_lens=[len(token_ids)],
        seq_lens=[len(token_ids)],
        page_table=pages[None],
        sample_idx=places,
    )
    with torch.inference_mode():
        return forward.logits(forward.hidden(batch)).float().clone()


def main(file: Path, *, token_ids: Path | None = None, num_tokens: int = 64) -> None:
    """Compare."""
    model = checkpoint_folder(file)
    vocab_size = json.loads((model / "config.json").read_text())["vocab_size"]
    ids = torch.randint(vocab_size, (num_tokens,), generator=torch.Generator().manual_seed(0))
    if token_ids is not None:
        ids = torch.tensor(json.loads(token_ids.read_text()))
    reference = logits_of(model, REFERENCE, ids)
    expected = functional.log_softmax(reference, -1)
    for name, settings in OURS.items():
        gc.collect()
        logits = logits_of(model, settings, ids)
        ours = functional.log_softmax(logits, -1)
        error = (logits - reference).norm() / reference.norm()
        kl = (expected.exp() * (expected - ours)).sum(-1).mean()
        same = (ours.argmax(-1) == expected.argmax(-1)).float().mean()
        print(f"inputs in {name}: error {error:.4f}, KL {kl:.6f}, same token {same:.1%}")


if __name__ == "__main__":
    cyclopts.run(main)
