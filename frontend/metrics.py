"""What a frontend counts, with a class for each part of it that counts."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from shared.errors import QueueFull, RateLimited
from shared.protocol.finish import FinishReason
from shared.protocol.text import ReplayStatus
from shared.subjects import JOB_CLASSES
from shared.telemetry.histograms import (
    REQUEST_S,
    TOKEN_S,
    TOKENS,
    TTFT_S,
    EventHistogram,
    EventHistograms,
)
from shared.telemetry.metrics import METRICS_PREFIX, EventCounter
from shared.telemetry.startup_phases import StartupPhases

PREFIX = f"{METRICS_PREFIX}_frontend"
_ENDED_HERE = (
    FinishReason.CANCEL,
    FinishReason.DEADLINE,
    FinishReason.QUEUE_TIMEOUT,
    FinishReason.UNSERVED,
)


class MetricMaker:
    """Makes metrics with one prefix, in one registry, and with one label for the model.

    Names are without the prefix.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def counter(self, name: str, text: str, *labels: str) -> EventCounter:
        counter = EventCounter(f"{PREFIX}_{name}", text, labels)
        self._registry.register(counter)
        return counter

    def gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"{PREFIX}_{name}", text, registry=self._registry)

    def histogram(self, name: str, text: str, bounds: tuple[float, ...]) -> EventHistograms:
        histograms = EventHistograms(f"{PREFIX}_{name}", text, bounds, "model_name")
        self._registry.register(histograms)
        return histograms

    def event_histogram(self, name: str, text: str, bounds: tuple[float, ...]) -> EventHistogram:
        histogram = EventHistogram(f"{PREFIX}_{name}", text, bounds)
        self._registry.register(histogram)
        return histogram


class AcceptanceMetrics:
    """What is counted of requests that are accepted, refused, or known already by their key."""

    def __init__(self, make: MetricMaker) -> None:
        self.prompt_tokens = make.counter("prompt_tokens", "Prompt tokens accepted.", "model_name")
        self.request_prompt_tokens = make.histogram(
            "request_prompt_tokens", "Prompt tokens of a request.", TOKENS
        )
        self.refused = make.counter(
            "requests_refused",
            "Valid requests that the queue did not take, by the error's code.",
            "reason",
            "job_class",
        )
        self.keyed = make.counter(
            "keyed_requests",
            "Requests with an idempotency key: new, joined, renewed or conflict.",
            "result",
        )
        self._begin_at_zero()

    def _begin_at_zero(self) -> None:
        """A rate cannot see the first of what was not there before."""
        for result in ("new", "joined", "renewed", "conflict"):
            self.keyed.labels(result)
        for error in (QueueFull, RateLimited):
            for job_class in JOB_CLASSES:
                self.refused.labels(error.code, job_class)


class StreamMetrics:
    """What is counted of text on its way to clients, and of clients that come back for it."""

    def __init__(self, make: MetricMaker) -> None:
        self.replays = make.counter(
            "replays", "Replays asked of detokenizers, by the status in the answer.", "status"
        )
        self.reply_gaps = make.counter(
            "reply_gaps", "Pieces of text that came before what precedes them: one was lost."
        )
        self.resumes = make.counter("resumes", "Streams resumed, by result.", "result")
        for status in (*ReplayStatus, "failed"):  # a rate cannot see the first of what was absent
            self.replays.labels(status)
        self.resumes.labels("ok")


class AnswerMetrics:
    """What is counted of requests that were accepted, until their end."""

    def __init__(self, make: MetricMaker) -> None:
        self.in_flight = make.gauge("requests_in_flight", "Accepted requests that a client reads.")
        self.request_success = make.counter(
            "request_success", "Choices finished, by reason.", "model_name", "finished_reason"
        )
        self.hand_overs = make.counter(
            "request_hand_overs",
            "Times that a finished request went on at another worker.",
            "model_name",
        )
        self.ended = make.counter(
            "requests_ended", "Requests that this frontend ended, by reason.", "reason"
        )
        for reason in _ENDED_HERE:  # a rate cannot see the first of what was not there before
            self.ended.labels(reason.value)
        self.tokens = OutputMetrics(make)
        self.latency = LatencyMetrics(make)


class OutputMetrics:
    """Output tokens."""

    def __init__(self, make: MetricMaker) -> None:
        self.generated = make.counter("generation_tokens", "Output tokens delivered.", "model_name")
        self.of_request = make.histogram(
            "request_generation_tokens", "Output tokens of a request.", TOKENS
        )


class LatencyMetrics:
    """Seconds that clients wait."""

    def __init__(self, make: MetricMaker) -> None:
        self.first_token = make.histogram(
            "time_to_first_token_seconds",
            "From the arrival of a request to its first text.",
            TTFT_S,
        )
        self.inter_token = make.event_histogram(
            "inter_token_latency_seconds",
            "Between two pieces of text of a stream, as they are sent.",
            TOKEN_S,
        )
        self.per_token = make.histogram(
            "request_time_per_output_token_seconds",
            "From the first text of a request to its last, by its tokens behind the first.",
            TOKEN_S,
        )
        self.whole = make.histogram(
            "e2e_request_latency_seconds",
            "From the arrival of a request to the end of its answer.",
            REQUEST_S,
        )


class BatchMetrics:
    """What is counted of the batches that a frontend drives."""

    def __init__(self, make: MetricMaker) -> None:
        self.live = make.gauge("batches_live", "Batches that this frontend drives.")
        self.lines = make.counter(
            "batch_lines", "Lines of batches that are over: completed or failed.", "result"
        )
        for result in ("completed", "failed"):  # a rate cannot see the first of what was absent
            self.lines.labels(result)


class FrontendMetrics:
    """All metrics of this role, in one registry: each part of a frontend gets its own."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.startup = StartupPhases()
        registry.register(self.startup)
        make = MetricMaker(registry)
        self.requests = make.counter(
            "requests", "Requests answered.", "transport", "route", "status"
        )
        self.acceptance = AcceptanceMetrics(make)
        self.streams = StreamMetrics(make)
        self.answers = AnswerMetrics(make)
        self.batches = BatchMetrics(make)
