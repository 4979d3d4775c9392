"""Steady decode steps: time a token, and its share of what reading all bytes would take."""

from __future__ import annotations

from bench.gpu.direct_engine import random_prompts
from bench.gpu.rig import Rig


def run(rig: Rig) -> None:
    sizes, costs = rig.sizes, rig.costs
    engine = rig.engine(max_running=max(sizes.decode_rows), cuda_graph_tokens=(0,))
    # The most first: for fewer requests, the prompts' keys and values are there already.
    prompts = random_prompts([sizes.decode_len] * max(sizes.decode_rows), seed=1)
    for num_rows in sizes.decode_rows:
        ran = engine.run(prompts[:num_rows], [sizes.decode_tokens] * num_rows)
        step_s = ran.step_s(num_rows)
        middle = sizes.decode_len + sizes.decode_tokens * 5 // 8  # of the steps that count
        least_s = costs.decode_bytes(num_rows, middle) / rig.ceilings.bytes_per_s
        rig.tell(
            {
                "model": rig.task.model,
                "attention": engine.kernels,
                "rows": num_rows,
                "step_ms": step_s * 1e3,
                "tokens_per_s": num_rows / step_s,
                "share": least_s / step_s,
            }
            | engine.host.decode_facts(num_rows)
        )
