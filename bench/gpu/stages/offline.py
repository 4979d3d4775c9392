"""Many requests at once: with overlap and without, with a prefix in common, with too few pages."""

from __future__ import annotations

from typing import Any

from bench.gpu.direct_engine import DirectEngine, random_prompts
from bench.gpu.offline_mix import OfflineMix
from bench.gpu.rig import Rig

NUM_WARM_UPS = 8  # requests
LARGE_BYTES = 8 << 30


def run(rig: Rig) -> None:
    sizes = rig.sizes
    mix = OfflineMix.make(sizes.num_offline, sizes.offline_len)
    subset = mix.first(sizes.num_offline_subset)
    shared = mix.behind(random_prompts([sizes.shared_len], seed=9)[0])
    engine = rig.engine(max_running=sizes.num_offline)
    few = mix.first(NUM_WARM_UPS)
    engine.run(few.prompts, few.output_lens)  # compiles what the start has not
    _measure(rig, engine, mix.another(1), "overlap")
    engine.set_overlap(False)
    _measure(rig, engine, mix.another(2), "no overlap")
    engine.set_overlap(True)
    _measure(rig, engine, subset.another(3), "subset")
    if rig.costs.weight_bytes > LARGE_BYTES:
        return  # the rest would take minutes, and tells nothing else
    _measure(rig, engine, shared, "shared prefix")
    del engine
    num_kv_tokens = max(mix.longest, mix.num_tokens // 4) + rig.page_size
    engine = rig.engine(
        max_running=sizes.num_offline,
        num_kv_tokens=num_kv_tokens,
        cuda_graph_sizes=(1, sizes.num_offline),
    )
    _measure(rig, engine, mix, "few pages")


def _measure(rig: Rig, engine: DirectEngine, mix: OfflineMix, what: str) -> None:
    ran = engine.run(mix.prompts, mix.output_lens)
    costs, ceilings = rig.costs, rig.ceilings
    least_s = sum(
        costs.step_seconds(step.num_tokens, *ceilings) for _, step in ran.steps if step.num_tokens
    )
    least_s += costs.kv_bytes_per_token * mix.num_kv_reads / ceilings.bytes_per_s
    before, after = ran.steps[0][1].load, ran.steps[-1][1].load
    queries = after.num_prefix_queries - before.num_prefix_queries
    facts: dict[str, Any] = {
        "model": rig.task.model,
        "what": what,
        "requests": len(mix.prompts),
        "seconds": ran.elapsed_s,
        "tokens_per_s": sum(mix.output_lens) / ran.elapsed_s,
        "share": least_s / ran.elapsed_s,
        "hit_rate": (after.num_prefix_hits - before.num_prefix_hits) / max(1, queries),
        "retractions": after.num_preemptions - before.num_preemptions,
    }
    rig.tell(facts)
