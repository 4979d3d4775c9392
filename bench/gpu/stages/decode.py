"""Steady decode steps: time a token, and its share of what reading all bytes would take."""

from __future__ import annotations

from typing import Any

from bench.gpu.direct_engine import random_prompts
from bench.gpu.rig import Rig


def run(rig: Rig) -> None:
    sizes = rig.sizes
    engine = rig.engine(max_running=max(sizes.decode_rows), cuda_graph_tokens=(0,))
    # The most first: for fewer requests, the prompts' keys and values are there already.
    prompts = random_prompts([sizes.decode_len] * max(sizes.decode_rows), seed=1)
    for num_rows in sizes.decode_rows:
        facts = {"model": rig.task.model, "attention": engine.kernels, "rows": num_rows}
        ran = engine.run(prompts[:num_rows], [sizes.decode_tokens] * num_rows)
        try:
            facts |= _speed(rig, num_rows, ran.step_s(num_rows))
        except ValueError as exc:  # keys and values of so many have no room
            facts["skipped"] = str(exc)
        rig.tell(facts | engine.host.decode_facts(num_rows))


def _speed(rig: Rig, num_rows: int, step_s: float) -> dict[str, Any]:
    context_len = rig.sizes.decode_len + rig.sizes.decode_tokens * 5 // 8  # of steps that count
    least_s = rig.costs.decode_bytes(num_rows, context_len) / rig.ceilings.bytes_per_s
    return {
        "step_ms": step_s * 1e3,
        "tokens_per_s": num_rows / step_s,
        "share": least_s / step_s,
    }
