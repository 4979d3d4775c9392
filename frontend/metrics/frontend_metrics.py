"""What a frontend counts."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from frontend.metrics.acceptance_metrics import AcceptanceMetrics
from frontend.metrics.answer_metrics import AnswerMetrics
from frontend.metrics.batch_metrics import BatchMetrics
from frontend.metrics.metric_maker import MetricMaker
from frontend.metrics.stream_metrics import StreamMetrics
from shared.telemetry.startup_phases import StartupPhases


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
