"""What a token costs behind a long context on a CPU, with keys and values in 16 and in 8 bits.

    python -m bench.long_context

A decoding step of one request of the 135 M Llama whose keys and values are noise; the two formats
take turns. Prints the memory of the context and the time of a step, the median of the rounds.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import cyclopts
import torch

from bench.checkpoint import write_config
from bench.model_shape import LLAMA_135M
from bench.speculate import StepLog
from shared.checkpoint.stored_format import KVDTypeName
from worker.engine.cpu.forward_batch import ForwardBatch, ForwardMode
from worker.engine.cpu.kv_cache_pool import KVCachePool
from worker.engine.loading.engine_loader import EngineLoader
from worker.engine.native.native_forward import NativeForward
from worker.engine_link.engine_config import EngineConfig

FORMATS: tuple[KVDTypeName, ...] = ("auto", "int8")
PAGE_SIZE = 16
SCALE = 0.01  # of noise in 8 bits


class LongContext:
    """A model whose pool is full of one request."""

    def __init__(self, model: Path, kv_dtype: KVDTypeName, num_tokens: int, num_threads: int):
        config = EngineConfig(
            model_path=str(model),
            load_format="dummy",
            dtype="bfloat16",
            kv_dtype=kv_dtype,
            num_kv_tokens=num_tokens,
            max_context_len=num_tokens,
            max_step_tokens=64,
            num_threads=num_threads,
        )
        loop = EngineLoader(config, StepLog()).load()
        runner = loop._engine._steps._runner
        self._forward: NativeForward = runner._forward
        self.pool: KVCachePool = runner._kv_cache_pool
        fill_with_noise(self.pool)
        last = torch.tensor([num_tokens - 1])
        self._batch = ForwardBatch(
            ForwardMode.DECODE,
            input_ids=torch.tensor([7]),
            positions=last,
            out_loc=last,
            query_lens=[1],
            seq_lens=[num_tokens],
            page_table=torch.arange(num_tokens // PAGE_SIZE, dtype=torch.int32)[None],
            sample_idx=torch.tensor([0]),
        )

    def step_s(self) -> float:
        begin_s = time.perf_counter()
        with torch.inference_mode():
            self._forward.logits(self._forward.hidden(self._batch))
        return time.perf_counter() - begin_s


@torch.inference_mode()
def fill_with_noise(pool: KVCachePool) -> None:
    layout = pool.layout
    for layer_id, place in layout.places.items():
        num_codes = layout.page_size * layout.groups[place.group].head_dim
        for part in pool.keys_and_values(layer_id):
            if layout.dtype != torch.int8:
                part.normal_()
                continue
            pages = part.flatten(2)  # of each head: its codes, then its scales
            pages.random_(-127, 128)
            scales = pages[..., num_codes:].contiguous()
            scales.view(torch.float32).fill_(SCALE)
            pages[..., num_codes:] = scales


def main(
    *,
    num_tokens: Annotated[int, cyclopts.Parameter(help="Of the context.")] = 32768,
    num_threads: int = 2,
    repeats: int = 15,
) -> None:
    """Measure decoding steps."""
    with TemporaryDirectory() as folder:
        model = Path(folder)
        write_config(model, LLAMA_135M)
        config = json.loads((model / "config.json").read_text())
        config["max_position_embeddings"] = num_tokens
        (model / "config.json").write_text(json.dumps(config))
        contexts = {name: LongContext(model, name, num_tokens, num_threads) for name in FORMATS}
        steps_s: dict[str, list[float]] = {name: [] for name in FORMATS}
        for _ in range(repeats):
            for name, context in contexts.items():
                steps_s[name].append(context.step_s())
        for name, context in contexts.items():
            mib = context.pool.layout.bytes_per_token * num_tokens / (1 << 20)
            step_ms = 1e3 * statistics.median(steps_s[name])
            print(f"{name:5} {num_tokens} tokens take {mib:.0f} MiB, a step {step_ms:.1f} ms")


if __name__ == "__main__":
    cyclopts.run(main)
