"""Whether a frontend is ready: a request for some model would be taken."""

from __future__ import annotations

from nats.aio.client import Client

from frontend.inference.admission.drain_rate import QueueWatch
from frontend.inference.inference import Inference
from frontend.limits.stream_limits import StreamLimits
from frontend.models.model_directory import ModelDirectory
from shared.cluster import Cluster
from shared.failover.server_watch import CUT_OFF
from shared.status.health import Checkup


class Readiness:
    """A request that would be taken may have to wait for a worker, if one is expected."""

    def __init__(
        self,
        cluster: Cluster,
        service_nc: Client | None,
        inference: Inference,
        models: ModelDirectory,
        queue_watch: QueueWatch,
        limits: StreamLimits,
    ) -> None:
        self._cluster = cluster
        self._service_nc = service_nc
        self._inference = inference
        self._models = models
        self._queue_watch = queue_watch
        self._limits = limits

    def checkup(self) -> Checkup:
        """All that keeps it from being ready."""
        not_ready = ["it is shutting down"] if self._inference.is_draining else []
        if words := self._connection_trouble():
            not_ready.append(words)
        if not self._models.is_fresh:
            not_ready.append("the model cards cannot be read")
        elif words := self._models.nothing_served:
            not_ready.append(words)
        if not self._queue_watch.is_fresh:
            not_ready.append("the queue cannot be seen")
        not_ready += self._limits.why_full
        return Checkup(not_ready=tuple(not_ready))

    def _connection_trouble(self) -> str:
        """Empty when all connections are well."""
        if not self._cluster.nc.is_connected:
            return "NATS cannot be reached"
        if self._cluster.server.is_cut_off:
            return CUT_OFF
        if self._service_nc is not None and not self._service_nc.is_connected:
            return "the connection of the NATS service is down"
        if not self._cluster.js.erasing_nc.is_connected:
            return "the connection that deletes is down"
        return ""
