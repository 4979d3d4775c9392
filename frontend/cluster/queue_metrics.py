"""The queue and the workers as Prometheus sees them: also while no worker lives to be asked."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from frontend.cluster.cluster_history import ClusterHistory
from frontend.metrics import PREFIX
from shared.cluster import Cluster
from shared.errors import BrokerError
from shared.event_wait import beat_s
from shared.snapshot.cluster_reader import ClusterReader
from shared.snapshot.cluster_snapshot import ClusterSnapshot
from shared.storage.stream_room import usage_of
from shared.telemetry.log import get_logger

_INTERVAL_S = 5.0
_IDLE_S = 30.0  # between two looks while nothing is asked of the service, and nobody reads them
_READ_S = 75.0  # those who read them do it every minute, or more often

log = get_logger(__name__)


class QueueMetrics(Collector):
    """Looks every few seconds, more seldom while nobody would see anything; shows nothing when it
    could not.

    All frontends show the same: take the maximum over them.
    """

    def __init__(self, cluster: Cluster, reader: ClusterReader, history: ClusterHistory) -> None:
        """`history` learns what is seen, so that it goes back to before somebody asks for it."""
        self._js = cluster.js
        self._reader = reader
        self._history = history
        subjects = cluster.subjects
        self._streams = {
            "requests": subjects.requests_stream,
            "tokens": subjects.tokens_stream,
            "results": subjects.results_stream,
            "responses": subjects.responses_stream,
            "batch": subjects.batch_stream,
            "objects": f"OBJ_{subjects.objects_bucket}",
            "files": f"OBJ_{subjects.files_bucket}",
            "file_keys": f"KV_{subjects.files_bucket}",
            "batch_keys": f"KV_{subjects.batches_bucket}",
            "reader_keys": f"KV_{subjects.attached_bucket}",
            "idempotency_keys": f"KV_{subjects.idempotency_bucket}",
        }
        self._seen: ClusterSnapshot | None = None
        self._usages: dict[str, float] = {}  # by stream
        self._looked_at = self._read_at = float("-inf")

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if not self._is_idle or time.monotonic() - self._looked_at > _IDLE_S:
                await self._try_look()
            await asyncio.sleep(beat_s(_INTERVAL_S))

    @property
    def _is_idle(self) -> bool:
        queues = () if self._seen is None else self._seen.queues
        is_asked = self._seen is None or any(each.num_waiting or each.num_taken for each in queues)
        return not is_asked and time.monotonic() - self._read_at > _READ_S

    async def _try_look(self) -> None:
        self._looked_at = time.monotonic()
        try:
            await self._look()
        except BrokerError as exc:
            log.debug("queue_not_measured", error=str(exc))
            self._seen, self._usages = None, {}

    async def _look(self) -> None:
        snapshot = await self._reader.snapshot()
        self._history.note(snapshot)
        usages = {
            name: usage_of(await self._info(stream)) for name, stream in self._streams.items()
        }
        self._seen, self._usages = snapshot, usages

    async def _info(self, stream: str) -> dict[str, Any]:
        return await self._js.api(f"STREAM.INFO.{stream}")

    def collect(self) -> Iterable[Metric]:
        self._read_at = time.monotonic()
        queue = ["model_name", "job_class"]
        waiting = _gauge("queue_waiting_requests", "Requests that no worker has.", queue)
        taken = _gauge("queue_taken_requests", "Requests that a worker has, and not over.", queue)
        oldest = _gauge(
            "queue_oldest_wait_seconds", "How long the oldest of those that wait has waited.", queue
        )
        workers = _gauge(
            "workers", "Workers with a heartbeat, by what they do.", ["model_name", "state"]
        )
        usage = _gauge(
            "stream_usage_ratio", "Share of a stream's limit of bytes or messages.", ["stream"]
        )
        dead = _gauge("dead_requests", "Requests that were given up, and are kept.", [])
        for depth in self._seen.queues if self._seen else ():
            labels = [depth.model, depth.job_class]
            waiting.add_metric(labels, depth.num_waiting)
            taken.add_metric(labels, depth.num_taken)
            oldest.add_metric(labels, depth.oldest_wait_s)
        for model_and_state, count in self._num_workers.items():
            workers.add_metric(model_and_state, count)
        for stream, value in self._usages.items():
            usage.add_metric([stream], value)
        if self._seen is not None:
            dead.add_metric([], self._seen.num_dead)
        yield from (waiting, taken, oldest, workers, usage, dead)

    @property
    def _num_workers(self) -> dict[tuple[str, str], int]:
        """A model without any has a 0: an alert cannot see what is not there."""
        if self._seen is None:
            return {}
        counts = Counter((card.model, card.state.value) for card in self._seen.workers)
        return {(queue.model, "ready"): 0 for queue in self._seen.queues} | counts


def _gauge(name: str, text: str, labels: list[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=labels)
