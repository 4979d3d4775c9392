"""What a frontend tells of the cluster, and of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from frontend.assembly.inference_parts import InferenceParts
from frontend.assembly.older_parts import OlderParts
from frontend.assembly.process_parts import ProcessParts
from frontend.assembly.stream_parts import StreamParts
from frontend.cluster.cluster_history import ClusterHistory
from frontend.cluster.cluster_views import ClusterViews
from frontend.cluster.queue_metrics import QueueMetrics
from frontend.cluster.readiness import Readiness
from frontend.cluster.request_path_service import PathService
from frontend.cluster.request_paths import RequestPaths
from frontend.cluster.usage import UsageBook
from frontend.inference.inference import Inference
from shared.machine.installation import own_version
from shared.snapshot.cluster_reader import ClusterReader


@dataclass(frozen=True, slots=True)
class ClusterParts:
    """Each looks when it is asked, and no more often than is useful."""

    reader: ClusterReader
    history: ClusterHistory
    views: ClusterViews
    queue_metrics: QueueMetrics
    paths: PathService
    readiness: Readiness
    usage: UsageBook

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
        reader = ClusterReader(cluster)
        history = ClusterHistory()
        recent, paths = parts.ends.recent, RequestPaths(cluster.ownership)
        return cls(
            reader=reader,
            history=history,
            views=ClusterViews(reader, streams.models, recent, paths, history, _head(process)),
            queue_metrics=QueueMetrics(cluster, reader, history),
            paths=PathService(streams.finder, cluster.ownership, older=older.paths),
            readiness=Readiness(
                cluster,
                process.service_nc,
                inference,
                streams.models,
                streams.queue_watch,
                streams.limits,
            ),
            usage=UsageBook(cluster, older=older.usage),
        )


def _head(process: ProcessParts) -> dict[str, str]:
    """What begins each document about the cluster: who tells it."""
    admin_url = process.config.admin_url
    return {
        "version": own_version(),
        "frontend": process.frontend_id,
        **({"admin_url": admin_url} if admin_url else {}),
    }
