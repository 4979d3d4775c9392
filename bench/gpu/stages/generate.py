"""transformers' `generate`, one request: static cache, compiled with "reduce-overhead"."""

from __future__ import annotations

import time
from typing import Any

import torch
import transformers
from transformers import CompileConfig

from bench.gpu.direct_engine import random_prompts
from bench.gpu.rig import Rig
from bench.gpu.transformers_model import make_peer_model

NUM_WARM_UPS = 2  # the first compiles, the second captures


def run(rig: Rig) -> None:
    model = make_peer_model(rig)
    prompt = random_prompts([rig.sizes.decode_len], seed=1)[0]
    input_ids = torch.tensor([prompt], device=rig.torch_device)
    times_s: list[float] = []

    def stamp(ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        if rig.is_gpu:
            torch.cuda.synchronize()  # it waits for each token itself, if a little later
        times_s.append(time.perf_counter())
        return torch.zeros(ids.shape[0], dtype=torch.bool, device=ids.device)

    for _ in range(NUM_WARM_UPS + 1):
        times_s.clear()
        model.generate(
            input_ids,
            attention_mask=torch.ones_like(input_ids),
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            max_new_tokens=rig.sizes.peer_tokens,
            stopping_criteria=[stamp],
            cache_implementation="static",
            compile_config=CompileConfig(mode="reduce-overhead") if rig.is_gpu else None,
            disable_compile=not rig.is_gpu,
        )
    token_s = (times_s[-1] - times_s[0]) / (len(times_s) - 1)
    facts: dict[str, Any] = {
        "model": rig.task.model,
        "version": transformers.__version__,
        "token_ms": token_s * 1e3,
        "tokens_per_s": 1 / token_s,
    }
    ours = rig.find("decode", model=rig.task.model, rows=1)
    rig.tell(facts | ({} if ours is None else {"ratio": token_s * 1e3 / ours["step_ms"]}))
