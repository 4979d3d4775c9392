"""What a worker is made of before it takes requests."""

from __future__ import annotations

from dataclasses import dataclass

from shared.cluster import Cluster
from shared.liveness.heartbeat import Writability
from shared.telemetry.tracing import Tracer
from worker.config import WorkerConfig
from worker.engine_child.engine_host import EngineHost
from worker.telemetry.worker_metrics import WorkerMetrics
from worker.weights.adapters import Adapters
from worker.weights.worker_model import WorkerModel


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One process of a worker, under an id that is never used again."""

    worker_id: str
    config: WorkerConfig
    cluster: Cluster
    model: WorkerModel
    adapters: Adapters
    engine: EngineHost
    heartbeats: Writability  # whether its own can be written: else those of others may be missed
    metrics: WorkerMetrics
    tracer: Tracer
