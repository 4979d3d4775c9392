"""What a frontend counts."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from shared.errors import QueueFull, RateLimited
from shared.protocol.finish import FinishReason
from shared.protocol.text import ReplayStatus
from shared.subjects import JOB_CLASSES
from shared.telemetry.event_histogram import EventHistogram
from shared.telemetry.histogram_bounds import REQUEST_S, TOKEN_S, TOKENS, TTFT_S
from shared.telemetry.metrics import METRICS_PREFIX
from shared.telemetry.startup_phases import StartupPhases

PREFIX = f"{METRICS_PREFIX}_frontend"


_ENDED_HERE = (
    FinishReason.CANCEL,
    FinishReason.DEADLINE,
    FinishReason.QUEUE_TIMEOUT,
    FinishReason.UNSERVED,
)


class FrontendMetrics:
    """All metrics of this role, in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.startup = StartupPhases()
        registry.register(self.startup)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"{PREFIX}_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"{PREFIX}_{name}", text, registry=registry)

        def histogram(name: str, text: str, bounds: tuple[float, ...]) -> Histogram:
            return Histogram(
                f"{PREFIX}_{name}", text, ["model_name"], buckets=bounds, registry=registry
            )

        self.requests = counter("requests", "Requests answered.", "transport", "route", "status")
        self.in_flight = gauge("requests_in_flight", "Accepted requests that a client reads.")
        self.request_success = counter(
            "request_success", "Choices finished, by reason.", "model_name", "finished_reason"
        )
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens accepted.", "model_name")
        self.generation_tokens = counter(
            "generation_tokens", "Output tokens delivered.", "model_name"
        )
        self.time_to_first_token = histogram(
            "time_to_first_token_seconds",
            "From the arrival of a request to its first text.",
            TTFT_S,
        )
        self.inter_token_latency = EventHistogram(
            f"{PREFIX}_inter_token_latency_seconds",
            "Between two pieces of text of a stream, as they are sent.",
            TOKEN_S,
        )
        registry.register(self.inter_token_latency)
        self.time_per_output_token = histogram(
            "request_time_per_output_token_seconds",
            "From the first text of a request to its last, by its tokens behind the first.",
            TOKEN_S,
        )
        self.e2e_latency = histogram(
            "e2e_request_latency_seconds",
            "From the arrival of a request to the end of its answer.",
            REQUEST_S,
        )
        self.request_prompt_tokens = histogram(
            "request_prompt_tokens", "Prompt tokens of a request.", TOKENS
        )
        self.request_generation_tokens = histogram(
            "request_generation_tokens", "Output tokens of a request.", TOKENS
        )
        self.hand_overs = counter(
            "request_hand_overs",
            "Times that a finished request went on at another worker.",
            "model_name",
        )
        self.replays = counter(
            "replays", "Replays asked of detokenizers, by the status in the answer.", "status"
        )
        self.reply_gaps = counter(
            "reply_gaps", "Pieces of text that came before what precedes them: one was lost."
        )
        self.resumes = counter("resumes", "Streams resumed, by result.", "result")
        self.refused = counter(
            "requests_refused",
            "Valid requests that the queue did not take, by the error's code.",
            "reason",
            "job_class",
        )
        self.keyed = counter(
            "keyed_requests",
            "Requests with an idempotency key: new, joined, renewed or conflict.",
            "result",
        )
        self.ended = counter(
            "requests_ended", "Requests that this frontend ended, by reason.", "reason"
        )
        self.live_batches = gauge("batches_live", "Batches that this frontend drives.")
        self.batch_lines = counter(
            "batch_lines", "Lines of batches that are over: completed or failed.", "result"
        )
        self._begin_at_zero()

    def _begin_at_zero(self) -> None:
        """A rate cannot see the first of what was not there before."""
        for status in (*ReplayStatus, "failed"):
            self.replays.labels(status)
        for result in ("new", "joined", "renewed", "conflict"):
            self.keyed.labels(result)
        for reason in _ENDED_HERE:
            self.ended.labels(reason.value)
        for error in (QueueFull, RateLimited):
            for job_class in JOB_CLASSES:
                self.refused.labels(error.code, job_class)
        for result in ("completed", "failed"):
            self.batch_lines.labels(result)
        self.resumes.labels("ok")
