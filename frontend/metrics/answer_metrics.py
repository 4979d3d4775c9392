"""What is counted of answers: how quickly they come, how long they are, how they end."""

from __future__ import annotations

from frontend.metrics.metric_maker import MetricMaker
from shared.protocol.finish import FinishReason
from shared.telemetry.histogram_bounds import REQUEST_S, TOKEN_S, TOKENS, TTFT_S

_ENDED_HERE = (
    FinishReason.CANCEL,
    FinishReason.DEADLINE,
    FinishReason.QUEUE_TIMEOUT,
    FinishReason.UNSERVED,
)


class AnswerMetrics:
    """Of requests that were accepted, until their end."""

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
