"""What a frontend tells of the cluster, and of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from frontend.assembly.inference_parts import InferenceParts
from frontend.assembly.older_parts import OlderParts
from frontend.assembly.process_parts import ProcessParts
from frontend.assembly.stream_parts import StreamParts
from frontend.cluster.cluster_board import ClusterBoard
from frontend.cluster.load_board import LoadBoard
from frontend.cluster.queue_metrics import QueueMetrics
from frontend.cluster.readiness import Readiness
from frontend.cluster.request_path_service import PathService
from frontend.inference.inference import Inference


@dataclass(frozen=True, slots=True)
class ClusterParts:
    """Each looks when it is asked, and no more often than is useful."""

    loads: LoadBoard
    board: ClusterBoard
    queue_metrics: QueueMetrics
    paths: PathService
    readiness: Readiness

    @classmethod
    def of(
        cls,
        process: ProcessParts,
        streams: StreamParts,
        parts: InferenceParts,
        inference: Inference,
        older: OlderParts,
    ) -> Self:
        cluster = streams.cluster
        loads = LoadBoard(cluster, process.frontend_id)
        return cls(
            loads=loads,
            board=ClusterBoard(cluster, streams.models, loads, parts.ends.recent),
            queue_metrics=QueueMetrics(cluster, loads),
            paths=PathService(streams.finder, cluster.ownership, older=older.paths),
            readiness=Readiness(
                cluster,
                process.service_nc,
                inference,
                streams.models,
                streams.queue_watch,
                streams.limits,
            ),
        )
