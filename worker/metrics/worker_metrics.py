"""All metrics of a worker, and what of them its card reports."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from shared.protocol.role_cards import WorkDone, WorkerState
from shared.telemetry.metrics import METRICS_PREFIX
from shared.telemetry.startup_phases import StartupPhases
from worker.engine_link.engine_messages import EngineLoad
from worker.held.held_request import HeldRequest
from worker.metrics.engine_metrics import EngineMetrics
from worker.metrics.metric_maker import MetricMaker
from worker.metrics.request_metrics import (
    DecodeMetrics,
    OfferMetrics,
    RequestMetrics,
    RunMetrics,
)
from worker.transfer.page_server import REFUSED_CONNECTIONS


class WorkerMetrics:
    """Named as vLLM names them, under our prefix; those of a queue it does not have."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        self.registry = registry
        make = MetricMaker(registry, model_name)
        self.requests = RequestMetrics(make)
        self.runs = RunMetrics(make)
        self.offers = OfferMetrics(make)
        self.decodes = DecodeMetrics(make)
        self.engine = EngineMetrics(make)
        self.pages = PageServerMetrics(registry, model_name)
        self.startup = StartupPhases()
        registry.register(self.startup)
        self._states = make.gauges(
            "worker_state", "1 for the state that the worker is in.", "state", WorkerState
        )

    def set_state(self, state: WorkerState) -> None:
        for each, gauge in self._states.items():
            gauge.set(each == state)


class PageServerMetrics:
    """Metrics of what this worker sends to others, counted by threads; zeros where it sends
    nothing.
    """

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        self._sent_bytes = Counter(
            f"{METRICS_PREFIX}_kv_transfer_sent_bytes",
            "Keys and values sent to other workers.",
            ["model_name"],
            registry=registry,
        ).labels(model_name)
        refused = Counter(
            f"{METRICS_PREFIX}_kv_transfer_refused_connections",
            "Connections that did not prove the key in time, are for other pages, or too many.",
            ["model_name", "reason"],
            registry=registry,
        )
        self._refused = {
            reason: refused.labels(model_name, reason) for reason in REFUSED_CONNECTIONS
        }

    def note_sent(self, num_bytes: int) -> None:
        self._sent_bytes.inc(num_bytes)

    def note_refused(self, reason: str) -> None:
        self._refused[reason].inc()


class WorkMeter:
    """What a worker has worked off since its start: by this a scaler knows its throughput.

    Counts prompt tokens when their first output comes, output tokens when they are made.
    """

    def __init__(self) -> None:
        self._num_tokens = 0
        self._num_finished = 0
        self._num_finished_tokens = 0

    def done(self, requests: RequestMetrics, load: EngineLoad | None) -> WorkDone:
        """As of now, beside what others have counted."""
        return WorkDone(
            num_tokens=self._num_tokens,
            num_finished=self._num_finished,
            num_finished_tokens=self._num_finished_tokens,
            num_redelivered=int(requests.redeliveries.value),
            num_generated=int(requests.generation_tokens.value),
            num_released=int(requests.released.value),
            num_fenced=int(requests.fenced.value),
            num_prefix_queries=load.num_prefix_queries if load else 0,
            num_prefix_hits=load.num_prefix_hits if load else 0,
        )

    def note_tokens(self, num_tokens: int) -> None:
        """Counts how many have been prefilled, or made."""
        self._num_tokens += num_tokens

    def note_finish(self, held: HeldRequest) -> None:
        """It has made its last token."""
        assert held.finish is not None
        self._num_finished += 1
        num_prompt = held.request.reply.num_prompt_tokens - held.finish.num_cached_tokens
        self._num_finished_tokens += max(0, num_prompt) + held.num_output_tokens
