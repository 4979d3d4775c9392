"""What a frontend counts."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from shared.event_histogram import EventHistogram
from shared.metrics import METRICS_PREFIX
from shared.startup_phases import StartupPhases

PREFIX = f"{METRICS_PREFIX}_frontend"

_TTFT_S = (
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    30,
    60,
    120,
)
_ITL_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 5)
_E2E_S = (0.05, 0.1, 0.3, 0.5, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 60, 120, 240, 480, 960, 1920)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)


class FrontendMetrics:
    """All metrics of this role, in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.startup = StartupPhases()
        registry.register(self.startup)
        self.requests = Counter(
            f"{PREFIX}_requests",
            "Requests answered.",
            ["transport", "route", "status"],
            registry=registry,
        )
        self.in_flight = Gauge(
            f"{PREFIX}_requests_in_flight",
            "Accepted requests that a client reads.",
            registry=registry,
        )
        self.request_success = Counter(
            f"{PREFIX}_request_success",
            "Choices finished, by reason.",
            ["model_name", "finished_reason"],
            registry=registry,
        )
        self.prompt_tokens = Counter(
            f"{PREFIX}_prompt_tokens", "Prompt tokens accepted.", ["model_name"], registry=registry
        )
        self.generation_tokens = Counter(
            f"{PREFIX}_generation_tokens",
            "Output tokens delivered.",
            ["model_name"],
            registry=registry,
        )
        self.time_to_first_token = Histogram(
            f"{PREFIX}_time_to_first_token_seconds",
            "From the arrival of a request to its first text.",
            ["model_name"],
            buckets=_TTFT_S,
            registry=registry,
        )
        self.inter_token_latency = EventHistogram(
            f"{PREFIX}_inter_token_latency_seconds",
            "Between two pieces of text of a stream, as they are sent.",
            _ITL_S,
        )
        registry.register(self.inter_token_latency)
        self.e2e_latency = Histogram(
            f"{PREFIX}_e2e_request_latency_seconds",
            "From the arrival of a request to the end of its answer.",
            ["model_name"],
            buckets=_E2E_S,
            registry=registry,
        )
        self.request_prompt_tokens = Histogram(
            f"{PREFIX}_request_prompt_tokens",
            "Prompt tokens of a request.",
            ["model_name"],
            buckets=_TOKENS,
            registry=registry,
        )
        self.request_generation_tokens = Histogram(
            f"{PREFIX}_request_generation_tokens",
            "Output tokens of a request.",
            ["model_name"],
            buckets=_TOKENS,
            registry=registry,
        )
        self.replays = Counter(
            f"{PREFIX}_replays",
            "Replays asked of detokenizers, by the status in the answer.",
            ["status"],
            registry=registry,
        )
        self.resumes = Counter(
            f"{PREFIX}_resumes", "Streams resumed, by result.", ["result"], registry=registry
        )
        self.refused = Counter(
            f"{PREFIX}_requests_refused",
            "Valid requests that the queue did not take, by the error's code.",
            ["reason", "job_class"],
            registry=registry,
        )
        self.keyed = Counter(
            f"{PREFIX}_keyed_requests",
            "Requests with an idempotency key: new, joined, renewed or conflict.",
            ["result"],
            registry=registry,
        )
        self.ended = Counter(
            f"{PREFIX}_requests_ended",
            "Requests that this frontend ended, by reason.",
            ["reason"],
            registry=registry,
        )
