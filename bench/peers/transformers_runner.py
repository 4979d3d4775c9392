"""Runs transformers' continuous batching: one manager for all runs, as its server keeps it."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

from bench.peers.runner import RequestTrace, RunnerSettings, Stopwatch, serve

PAGE_SIZE = 32  # tokens; its default of 256 would give a short request mostly air
MAX_STEP_TOKENS = 512


class TransformersRunner:
    """The model, and the manager's own thread that steps it."""

    def __init__(self, settings: RunnerSettings) -> None:
        self.version = transformers.__version__
        torch.set_num_threads(settings.num_threads)
        model: Any = AutoModelForCausalLM.from_pretrained(
            settings.model, dtype=getattr(torch, settings.dtype), attn_implementation="sdpa"
        )
        model.eval()
        greedy = GenerationConfig(  # type: ignore[no-untyped-call]
            do_sample=False, eos_token_id=-1, pad_token_id=2, max_new_tokens=settings.max_len
        )
        config = model.config
        values = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
        bytes_per_token = values * getattr(torch, settings.dtype).itemsize
        num_blocks = (settings.kv_gib << 30) // (bytes_per_token * PAGE_SIZE)
        batching = ContinuousBatchingConfig(
            page_size=PAGE_SIZE,
            num_blocks=num_blocks,
            max_batch_tokens=MAX_STEP_TOKENS,
            max_requests_per_batch=settings.max_running,
        )
        self._manager = model.init_continuous_batching(
            generation_config=greedy, continuous_batching_config=batching
        )
        self._manager.start()

    def run(self, prompts: list[list[int]], output_len: int) -> list[RequestTrace]:
        stopwatch = Stopwatch()
        request_ids = self._manager.add_requests(
            inputs=prompts, max_new_tokens=output_len, record_timestamps=True
        )
        traces: dict[str, RequestTrace] = {}
        while len(traces) < len(prompts):
            result = self._manager.get_result(timeout=1)
            if result is None:
                if not self._manager.is_running():
                    raise SystemExit("its thread ended")
                continue
            if result.error is not None:
                raise SystemExit(result.error)
            if result.is_finished():
                # Its time stamps are of the clock of our stopwatch.
                times_s = [at - stopwatch.begin for at in result.timestamps]
                traces[result.request_id] = RequestTrace(list(result.generated_tokens), times_s)
        return [traces[request_id] for request_id in request_ids]

    def close(self) -> None:
        self._manager.stop(block=True, timeout=5)


if __name__ == "__main__":
    serve(TransformersRunner)
