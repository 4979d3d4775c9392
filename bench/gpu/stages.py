"""The stages of a run, each with a time limit of its own; later ones go on when one fails."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench.gpu.attention_case import AttentionCase
from bench.gpu.ceilings import Ceilings
from bench.gpu.direct_engine import DirectEngine
from bench.gpu.report import Report
from bench.gpu.shapes import SHAPES, Costs, write_config
from bench.gpu.stopwatch import device_seconds
from worker.engine.attention.attention_layer import AttentionLayer

PAGE_SIZE = 16


@dataclass(slots=True)
class Bench:
    """What the stages share."""

    folder: Path
    report: Report
    device: torch.device
    models: tuple[str, ...]
    settings: dict[str, Any]  # of every engine
    ceilings: Ceilings | None = None

    @property
    def is_gpu(self) -> bool:
        return self.device.type == "cuda"

    def measured_ceilings(self) -> Ceilings:
        """Measured when they are asked for first."""
        if self.ceilings is None:
            self.ceilings = Ceilings.measure(self.device)
            self.report.add("ceilings", **self.ceilings._asdict())
        return self.ceilings

    def engine(self, model: str, **config: Any) -> DirectEngine:
        return DirectEngine(write_config(self.folder, model), **(self.settings | config))


def environment(bench: Bench) -> None:
    """Versions, and the ceilings."""
    facts: dict[str, Any] = {"torch": torch.__version__}
    if bench.is_gpu:
        properties = torch.cuda.get_device_properties(bench.device)
        facts |= {
            "gpu": properties.name,
            "memory_gib": properties.total_memory / 2**30,
            "processors": properties.multi_processor_count,
            "cuda": torch.version.cuda,
        }
    bench.report.add("environment", **facts)
    bench.measured_ceilings()


def correctness(bench: Bench) -> None:
    """Tokens by kernels and graphs against plain torch, drawn and greedy, on a tiny model."""
    if not bench.is_gpu:
        bench.report.add("correctness", what="not on a CPU: the tests do it there")
        return
    lens, outputs = [1, 15, 40, 130], [12, 12, 12, 12]

    def tokens(**config: Any) -> dict[int, list[int]]:
        engine = bench.engine("tiny", dtype="float32", num_kv_tokens=4096, **config)
        found: dict[int, list[int]] = {}
        samplings: list[dict[str, Any]] = [{}, {"temperature": 1.0, "seed": 5, "top_p": 0.9}]
        for sampling in samplings:
            for _, step in engine.run(lens, outputs, **sampling):
                for output in step.outputs:
                    found.setdefault(output.run_id, []).extend(output.token_ids)
        return found

    plain = tokens(attention_backend="torch")
    configs: dict[str, dict[str, Any]] = {
        "triton": {"attention_backend": "triton"},
        "triton, overlap": {"attention_backend": "triton", "overlap": True},
        "triton, no graphs": {"attention_backend": "triton", "cuda_graph_sizes": (1,)},
    }
    for name, config in configs.items():
        ours = tokens(**config)
        num_same = sum(ours[run] == plain[run] for run in plain)
        bench.report.add("correctness", what=name, same=num_same, of=len(plain))


def attention(bench: Bench) -> None:
    """Decode attention alone, in bytes of keys and values a second."""
    batches = ((1, 8, 32, 128, 256), (1024, 4096)) if bench.is_gpu else ((1, 2), (64,))
    for num_heads, (num_rows, context_len) in itertools.product(
        (16, 32), itertools.product(*batches)
    ):
        layer = AttentionLayer(num_heads, 8, 128, 128**-0.5)
        case = AttentionCase.make(layer, num_rows, context_len, PAGE_SIZE, bench.device)
        for num_splits in (1, 2, 4, 8, 16, 32) if bench.is_gpu else (2,):
            seconds = device_seconds(case.decode(num_splits))
            bench.report.add(
                "attention",
                heads=f"{num_heads}/8",
                rows=num_rows,
                context=context_len,
                splits=num_splits,
                us=seconds * 1e6,
                share=case.num_bytes / seconds / bench.measured_ceilings().bytes_per_s,
            )


def linears(bench: Bench) -> None:
    """The decoder's matrix products by the library, in bytes of weights a second."""
    row_counts = (1, 2, 4, 8, 16, 32, 64, 128, 256) if bench.is_gpu else (1, 2)
    for model in bench.models:
        shape = SHAPES[model]
        hidden, size = shape["hidden_size"], shape["intermediate_size"]
        qkv = shape["head_dim"] * (shape["num_attention_heads"] + 2 * shape["num_key_value_heads"])
        for name, (out, width) in {
            "qkv": (qkv, hidden),
            "gate_up": (2 * size, hidden),
            "down": (hidden, size),
        }.items():
            weights = [
                torch.randn(out, width, device=bench.device).to(torch.bfloat16)
                for _ in range(8 if bench.is_gpu else 1)  # more than the caches hold
            ]
            for num_rows in row_counts:
                x = torch.randn(num_rows, width, device=bench.device).to(torch.bfloat16)

                def work(x: torch.Tensor = x, weights: list[torch.Tensor] = weights) -> None:
                    for weight in weights:
                        torch.nn.functional.linear(x, weight)

                seconds = device_seconds(work) / len(weights)
                num_bytes = weights[0].numel() * 2
                bench.report.add(
                    "linear",
                    model=model,
                    what=name,
                    rows=num_rows,
                    us=seconds * 1e6,
                    share=num_bytes / seconds / bench.measured_ceilings().bytes_per_s,
                )


def decode(bench: Bench) -> None:
    """Steady decode steps: time a token, and its share of what reading all bytes would take."""
    row_counts = (1, 8, 32, 64, 128, 256) if bench.is_gpu else (1, 2)
    context_len, num_steps = (1024, 128) if bench.is_gpu else (32, 6)
    for model in bench.models:
        costs = Costs(model)
        engine = bench.engine(model, max_running=max(row_counts), overlap=True)
        for num_rows in row_counts:
            steps = engine.run([context_len] * num_rows, [num_steps] * num_rows)
            times = [at for at, step in steps if len(step.outputs) == num_rows]
            pauses = [b - a for a, b in itertools.pairwise(times)]
            step_s = statistics.median(pauses[len(pauses) // 4 :])
            num_bytes = costs.decode_bytes(num_rows, context_len + num_steps // 2)
            least_s = num_bytes / bench.measured_ceilings().bytes_per_s
            bench.report.add(
                "decode",
                model=model,
                rows=num_rows,
                step_ms=step_s * 1e3,
                tokens_per_s=num_rows / step_s,
                share=least_s / step_s,
            )


def prefill(bench: Bench) -> None:
    """One prompt: time to its first token, and the share of what its products would take."""
    lens = (1024, 4096, 8192) if bench.is_gpu else (64,)
    for model in bench.models:
        costs = Costs(model)
        for chunk in (2048, 8192) if bench.is_gpu else (32,):
            engine = bench.engine(model, max_step_tokens=chunk, max_step_s=60.0, max_running=8)
            for prompt_len in lens:
                seconds = []
                for _ in range(3):
                    steps = engine.run([prompt_len], [1])
                    seconds.append(steps[-1][0])
                least_s = costs.prefill_flops(prompt_len) / bench.measured_ceilings().flops_per_s
                ttft_s = statistics.median(seconds)
                bench.report.add(
                    "prefill",
                    model=model,
                    tokens=prompt_len,
                    chunk=chunk,
                    ttft_ms=ttft_s * 1e3,
                    share=least_s / ttft_s,
                )


def offline(bench: Bench) -> None:
    """256 requests of 100 to 1024 tokens in and out, all at once: with overlap and without."""
    num_requests, longest = (256, 1024) if bench.is_gpu else (4, 24)
    lens = [longest // 10 + (idx * 7919) % (longest * 9 // 10) for idx in range(2 * num_requests)]
    for model, overlap in itertools.product(bench.models, (True, False)):
        engine = bench.engine(model, max_running=min(256, num_requests), overlap=overlap)
        steps = engine.run(lens[:num_requests], lens[num_requests:])
        bench.report.add(
            "offline",
            model=model,
            overlap=overlap,
            seconds=steps[-1][0],
            tokens_per_s=sum(lens[num_requests:]) / steps[-1][0],
        )


STAGES: dict[str, tuple[Callable[[Bench], None], float]] = {  # with seconds
    "environment": (environment, 30),
    "correctness": (correctness, 60),
    "decode": (decode, 150),
    "prefill": (prefill, 60),
    "attention": (attention, 60),
    "linears": (linears, 40),
    "offline": (offline, 120),
}
