"""What LoRA adapters cost a request on a CPU.

    python -m bench.lora

One engine decodes the same prompts without adapters, with one for all, and with eight in turns.
Prints the CPU time of a token (median of the rounds), and its ratio to that without adapters.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import cyclopts

from bench.checkpoint import ensure_checkpoint
from bench.engine import DEFAULT_MODEL
from bench.model_shape import ModelShape
from bench.speculate import StepLog
from shared.protocol.sampling import SamplingParams
from shared.protocol.token_ids import pack_token_ids
from worker.engine.loading.engine_loader import EngineLoader
from worker.engine_link.engine_config import EngineConfig
from worker.engine_link.engine_messages import AddRequest, FlushCache, LoadAdapter, RunOptions

NUM_ADAPTERS = 8
STREAMS = (1, 8, 32)
PROMPT_LEN = 32


class LoraEngine:
    """Our engine in this process, with adapters of random weights."""

    def __init__(self, model_path: Path, folder: Path, rank: int, num_threads: int) -> None:
        config = EngineConfig(
            model_path=str(model_path),
            num_kv_tokens=16384,
            num_threads=num_threads,
            max_loras=NUM_ADAPTERS,
            max_step_s=10.0,
            target_itl_s=10.0,
        )
        self._log = StepLog()
        self._loop = EngineLoader(config, self._log).load()
        shape = ModelShape.read(model_path)
        self._vocab_size = shape.vocab_size
        for idx in range(NUM_ADAPTERS):
            path = folder / str(idx)
            save_adapter(path, shape, rank, seed=idx)
            self._log.commands.append(LoadAdapter(str(idx), str(path)))
        self._loop.run(until_idle=True)
        self._num_runs = 0

    def cpu_per_token_s(self, adapters: Sequence[str], num_tokens: int) -> float:
        """Of one request for each of `adapters`, once all prompts are computed."""
        sampling = SamplingParams(max_tokens=num_tokens, seed=0, temperature=0.0, ignore_eos=True)
        self._log.commands = [FlushCache()]
        for adapter in adapters:
            self._num_runs += 1
            first = self._num_runs * 7919
            prompt = [(first + 31 * idx) % self._vocab_size for idx in range(PROMPT_LEN)]
            options = RunOptions(sampling=sampling, adapter=adapter, namespace=adapter.encode())
            add = AddRequest(
                run_id=self._num_runs, prompt_ids=pack_token_ids(prompt), options=options
            )
            self._log.commands.append(add)
        begin_s = time.process_time()
        self._loop.run(until_idle=True)
        return (time.process_time() - begin_s) / (len(adapters) * num_tokens)


def save_adapter(path: Path, shape: ModelShape, rank: int, seed: int) -> None:
    """On every projection of every layer, as PEFT writes it."""
    import torch
    from safetensors.torch import save_file

    hidden, inner = shape.hidden_size, shape.intermediate_size
    q_size, kv_size = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    sizes = {
        "self_attn.q_proj": (hidden, q_size),
        "self_attn.k_proj": (hidden, kv_size),
        "self_attn.v_proj": (hidden, kv_size),
        "self_attn.o_proj": (q_size, hidden),
        "mlp.gate_proj": (hidden, inner),
        "mlp.up_proj": (hidden, inner),
        "mlp.down_proj": (inner, hidden),
    }
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer_id in range(shape.num_layers):
        for name, (num_inputs, num_outputs) in sizes.items():
            prefix = f"base_model.model.model.layers.{layer_id}.{name}"
            down = torch.randn(rank, num_inputs, generator=generator)
            tensors[f"{prefix}.lora_A.weight"] = 0.02 * down
            up = torch.randn(num_outputs, rank, generator=generator)
            tensors[f"{prefix}.lora_B.weight"] = 0.02 * up
    path.mkdir(parents=True)
    save_file(tensors, path / "adapter_model.safetensors")
    modules = [name.rpartition(".")[2] for name in sizes]
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": modules}
    (path / "adapter_config.json").write_text(json.dumps(config))


def main(
    *,
    model: Annotated[Path, cyclopts.Parameter(help="Made here unless it exists.")] = DEFAULT_MODEL,
    rank: int = 16,
    num_threads: int = 2,
    num_tokens: int = 48,
    repeats: int = 5,
) -> None:
    """Measure adapters on a CPU."""
    ensure_checkpoint(model)
    with TemporaryDirectory() as folder:
        engine = LoraEngine(model, Path(folder), rank, num_threads)
        for num_streams in STREAMS:
            kinds = {
                "none": [""] * num_streams,
                "one": ["0"] * num_streams,
                "eight": [str(idx % NUM_ADAPTERS) for idx in range(num_streams)],
            }
            turns: dict[str, list[float]] = {kind: [] for kind in kinds}
            for round_idx in range(repeats + 1):  # the first one warms up
                for kind, adapters in kinds.items():
                    cpu_s = engine.cpu_per_token_s(adapters, num_tokens)
                    turns[kind] += [cpu_s] * (round_idx > 0)
            told = report(turns)
            print(f"{num_streams:3} streams, rank {rank}, CPU ms a token: {told}", flush=True)


def report(turns: dict[str, list[float]]) -> str:
    """By kind, beside the first."""
    medians = {kind: statistics.median(values) for kind, values in turns.items()}
    base = medians["none"]
    return ", ".join(f"{kind} {1e3 * s:.2f} ({s / base:.2f})" for kind, s in medians.items())


if __name__ == "__main__":
    cyclopts.run(main)
