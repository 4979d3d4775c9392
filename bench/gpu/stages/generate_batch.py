"""transformers' continuous batching (`generate_batch`), on a part of the offline mix."""

from __future__ import annotations

import time
from typing import Any

import transformers
from transformers import ContinuousBatchingConfig, GenerationConfig

from bench.gpu.offline_mix import OfflineMix
from bench.gpu.rig import Rig
from bench.gpu.transformers_model import make_peer_model

NUM_WARM_UPS = 2  # requests


def run(rig: Rig) -> None:
    sizes = rig.sizes
    mix = OfflineMix.make(sizes.num_offline, sizes.offline_len).first(sizes.num_offline_subset)
    config = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
    limits = {} if rig.is_gpu else {"num_blocks": 16, "max_batch_tokens": 64}
    manager = make_peer_model(rig).init_continuous_batching(
        generation_config=config,
        continuous_batching_config=ContinuousBatchingConfig(**limits),
    )
    manager.start()
    try:
        _finish(manager, mix.another(1).first(NUM_WARM_UPS))
        begin = time.perf_counter()
        num_tokens = _finish(manager, mix)
        elapsed_s = time.perf_counter() - begin
    finally:
        manager.stop(block=True, timeout=5)
    facts: dict[str, Any] = {
        "model": rig.task.model,
        "version": transformers.__version__,
        "requests": len(mix.prompts),
        "seconds": elapsed_s,
        "tokens_per_s": num_tokens / elapsed_s,
    }
    ours = rig.find("offline", model=rig.task.model, what="subset")
    if ours is not None:
        facts["ratio"] = ours["tokens_per_s"] / facts["tokens_per_s"]
    rig.tell(facts)


def _finish(manager: Any, mix: OfflineMix) -> int:
    """All tokens of all requests. Raises RuntimeError when some are missing."""
    for prompt, output_len in zip(mix.prompts, mix.output_lens, strict=True):
        manager.add_request(list(prompt), max_new_tokens=output_len)
    num_tokens = num_done = 0
    while num_done < len(mix.prompts):
        result = manager.get_result(timeout=1)
        if result is None:
            if not manager.is_running():
                raise RuntimeError("its thread has ended")
        elif result.error is not None:
            raise RuntimeError(result.error)
        elif result.is_finished():
            num_done += 1
            num_tokens += len(result.generated_tokens)
    if num_tokens != sum(mix.output_lens):
        raise RuntimeError(f"{num_tokens} tokens came, {sum(mix.output_lens)} were asked for")
    return num_tokens
