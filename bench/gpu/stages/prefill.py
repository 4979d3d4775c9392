"""One prompt: time to its first token, and the share of what its products would take."""

from __future__ import annotations

import itertools
import statistics

from bench.gpu.direct_engine import random_prompts
from bench.gpu.rig import Rig

NUM_TRIES = 3


def run(rig: Rig) -> None:
    sizes, costs = rig.sizes, rig.costs
    engine = rig.engine(max_step_tokens=max(sizes.chunks), max_running=8, cuda_graph_sizes=(1,))
    for chunk, prompt_len in itertools.product(sizes.chunks, sizes.prompt_lens):
        engine.set_step_tokens(chunk)
        ttfts_s = []
        for idx in range(NUM_TRIES):
            prompts = random_prompts([prompt_len], seed=hash((chunk, prompt_len, idx)))
            ttfts_s.append(engine.run(prompts, [1]).elapsed_s)
        ttft_s = statistics.median(ttfts_s)
        least_s = costs.prefill_flops(prompt_len) / rig.ceilings.flops_per_s
        rig.tell(
            {
                "model": rig.task.model,
                "attention": engine.kernels,
                "tokens": prompt_len,
                "chunk": chunk,
                "ttft_ms": ttft_s * 1e3,
                "tokens_per_s": prompt_len / ttft_s,
                "share": least_s / ttft_s,
            }
        )
