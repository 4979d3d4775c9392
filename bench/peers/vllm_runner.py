"""Runs vLLM offline: its engine, stepped by us so that each token's time is seen."""

from __future__ import annotations

import itertools
from typing import Any

import vllm
from vllm import EngineArgs, LLMEngine, SamplingParams
from vllm.sampling_params import RequestOutputKind

from bench.peers.runner import RequestTrace, RunnerSettings, Stopwatch, serve


class VllmRunner:
    """The engine; its core is a process of its own. KV memory: VLLM_CPU_KVCACHE_SPACE."""

    def __init__(self, settings: RunnerSettings) -> None:
        self.version = vllm.__version__
        self._request_ids = itertools.count()
        self._engine: Any = LLMEngine.from_engine_args(
            EngineArgs(
                model=settings.model,
                dtype=settings.dtype,
                max_model_len=settings.max_len,
                max_num_seqs=settings.max_running,
                kv_cache_memory_bytes=settings.kv_gib << 30,
                generation_config="vllm",
                disable_log_stats=True,
            )
        )

    def run(self, prompts: list[list[int]], output_len: int) -> list[RequestTrace]:
        sampling = SamplingParams(
            temperature=0.0,
            max_tokens=output_len,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        stopwatch = Stopwatch()
        traces: dict[str, RequestTrace] = {}
        for prompt in prompts:
            request_id = str(next(self._request_ids))
            traces[request_id] = RequestTrace()
            self._engine.add_request(request_id, {"prompt_token_ids": prompt}, sampling)
        while self._engine.has_unfinished_requests():
            outputs = self._engine.step()
            now_s = stopwatch()
            for output in outputs:
                traces[output.request_id].add(list(output.outputs[0].token_ids), now_s)
        return list(traces.values())

    def close(self) -> None:
        self._engine.engine_core.shutdown()


if __name__ == "__main__":
    serve(VllmRunner)
