"""Histograms of the runs that a worker has finished."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from shared.telemetry.event_histogram import EventHistogram
from shared.telemetry.histogram_bounds import REQUEST_S, STEP_TOKENS, TOKEN_S, TOKENS
from shared.telemetry.metrics import METRICS_PREFIX
from worker.held.held_request import HeldRequest


class RunMetrics:
    """vLLM's, under our prefix: what a request's client feels is told by frontends."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        def histogram(name: str, text: str, bounds: tuple[float, ...]) -> EventHistogram:
            made = EventHistogram(
                f"{METRICS_PREFIX}_{name}", text, bounds, {"model_name": model_name}
            )
            registry.register(made)
            return made

        self._queue_s = histogram(
            "request_queue_time_seconds",
            "Of a run, inside the worker before its first step; what waits in NATS is not in it.",
            REQUEST_S,
        )
        self._prefill_s = histogram(
            "request_prefill_time_seconds", "From its first step to its first token.", REQUEST_S
        )
        self._decode_s = histogram(
            "request_decode_time_seconds", "From its first token to its last.", REQUEST_S
        )
        self._inference_s = histogram(
            "request_inference_time_seconds", "From its first step to its last token.", REQUEST_S
        )
        self._token_s = histogram(
            "request_time_per_output_token_seconds",
            "Decode time of a run by its tokens behind the first.",
            TOKEN_S,
        )
        self._prompt_tokens = histogram(
            "request_prompt_tokens", "Prompt tokens of a finished request.", TOKENS
        )
        self._generation_tokens = histogram(
            "request_generation_tokens", "Output tokens of a finished request.", TOKENS
        )
        self.step_tokens = histogram(
            "iteration_tokens", "Tokens that went through the model in a step.", STEP_TOKENS
        )

    def note_finish(self, held: HeldRequest) -> None:
        """It has made its last token, and says how that went."""
        assert held.finish is not None
        run = held.finish.run
        assert run is not None
        self._queue_s.observe(run.queue_s)
        self._prefill_s.observe(run.prefill_s)
        self._decode_s.observe(run.decode_s)
        self._inference_s.observe(run.prefill_s + run.decode_s)
        num_behind_first = len(held.tokens) - held.num_prefix - 1
        if num_behind_first > 0:
            self._token_s.observe(run.decode_s / num_behind_first)
        self._prompt_tokens.observe(held.request.reply.num_prompt_tokens)
        self._generation_tokens.observe(held.num_output_tokens)
