"""Steady decode steps: time a token, and its share of what reading all bytes would take."""

from __future__ import annotations

from typing import Any

from bench.gpu.direct_engine import DirectEngine, random_prompts
from bench.gpu.goals import GREEDY, SAMPLED
from bench.gpu.rig import Rig

SAMPLINGS: dict[str, dict[str, Any]] = {
    GREEDY: {},
    SAMPLED: {"temperature": 0.6, "top_k": 20, "top_p": 0.95},  # as Qwen3's generation_config.json
}


def run(rig: Rig) -> None:
    sizes = rig.sizes
    engine = rig.engine(max_running=max(sizes.decode_rows), cuda_graph_tokens=(0,))
    # The most first: for fewer requests, the prompts' keys and values are there already.
    for num_rows in sizes.decode_rows:
        _measure(rig, engine, num_rows, GREEDY)
    for num_rows in sizes.sampled_rows:
        _measure(rig, engine, num_rows, SAMPLED)


def _measure(rig: Rig, engine: DirectEngine, num_rows: int, sampling: str) -> None:
    sizes = rig.sizes
    prompts = random_prompts([sizes.decode_len] * num_rows, seed=1)
    facts = {"model": rig.task.model, "attention": engine.kernels, "rows": num_rows}
    facts |= {"sampling": sampling}
    ran = engine.run(prompts, [sizes.decode_tokens] * num_rows, **SAMPLINGS[sampling])
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
