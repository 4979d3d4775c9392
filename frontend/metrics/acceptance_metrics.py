"""What is counted of requests that want to come in."""

from __future__ import annotations

from frontend.metrics.metric_maker import MetricMaker
from shared.errors import QueueFull, RateLimited
from shared.subjects import JOB_CLASSES
from shared.telemetry.histogram_bounds import TOKENS


class AcceptanceMetrics:
    """Of requests that are accepted, refused, or known already by their key."""

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
