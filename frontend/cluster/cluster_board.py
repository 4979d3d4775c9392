"""One look at everything a second, however many watch; and none while nobody does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from frontend.cluster.load_board import LoadBoard, Loads
from frontend.cluster.request_paths import Hop, RequestPaths
from frontend.inference.telemetry.recent_requests import RecentRequest, RecentRequests
from frontend.models.model_directory import ModelDirectory
from shared.broker.kv_bucket import readable
from shared.cluster import Cluster
from shared.errors import BrokerError, ServiceUnavailable
from shared.liveness.recent_events import RecentEvents
from shared.liveness.token_rates import TokenRates
from shared.protocol.model_cards import ModelCard
from shared.protocol.role_cards import PoolEvent, RoleCard

_MAX_AGE_S = 0.9


@dataclass(frozen=True, slots=True)
class ClusterLook:
    """All there is at one moment."""

    at: float  # unix seconds
    models: Sequence[ModelCard]
    loads: Loads
    tokens_per_s: Mapping[str, float]  # by worker
    roles: Sequence[RoleCard]
    num_dead: int  # requests that are kept after their crashes
    events: Mapping[int, PoolEvent]
    requests: Sequence[RecentRequest]
    paths: Mapping[str, Sequence[Hop]]  # by rid


class ClusterBoard:
    """Brings together what the cards, the queue, the logs and this frontend tell."""

    def __init__(
        self,
        cluster: Cluster,
        models: ModelDirectory,
        loads: LoadBoard,
        requests: RecentRequests,
    ) -> None:
        self._cluster = cluster
        self._models = models
        self._loads = loads
        self._requests = requests
        self._roles = cluster.bucket(cluster.subjects.roles_bucket)
        self._events = RecentEvents(cluster)
        self._paths = RequestPaths(cluster.ownership)
        self._rates = TokenRates()
        self._lock = asyncio.Lock()
        self._seen: ClusterLook | None = None
        self._seen_at = float("-inf")  # of the event loop's clock

    async def look(self) -> ClusterLook:
        """Raises ServiceUnavailable."""
        now = asyncio.get_running_loop().time
        async with self._lock:
            if self._seen is None or now() - self._seen_at > _MAX_AGE_S:
                try:
                    self._seen = await self._look()
                except BrokerError as exc:
                    raise ServiceUnavailable("The cluster cannot be seen now.") from exc
                self._seen_at = now()
            return self._seen

    async def _look(self) -> ClusterLook:
        requests, at = self._requests.seen(), time.time()
        loads, roles, num_dead, events, paths = await asyncio.gather(
            self._loads.look(),
            self._roles.entries(),
            self._num_dead(),
            self._events.read(at),
            self._paths.read(requests),
        )
        return ClusterLook(
            at=at,
            models=[each.card for each in self._models.named() if each.adapter is None],
            loads=loads,
            tokens_per_s=self._rates.note(loads.workers),
            roles=readable(RoleCard, roles),
            num_dead=num_dead,
            events=events,
            requests=requests,
            paths=paths,
        )

    async def _num_dead(self) -> int:
        info = await self._cluster.js.api(f"STREAM.INFO.{self._cluster.subjects.dead_stream}")
        return int(info["state"]["messages"])
