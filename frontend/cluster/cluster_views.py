"""The documents of `GET /cluster`, made once a snapshot for all who may see the same."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from frontend.cluster.cluster_history import ClusterHistory
from frontend.cluster.request_paths import RequestPaths
from frontend.cluster.view import Sight, Viewer, cluster_view
from frontend.inference.telemetry.recent_requests import RecentRequests
from frontend.models.model_directory import ModelDirectory
from shared.errors import BrokerError, ServiceUnavailable
from shared.snapshot.cluster_reader import ClusterReader


class ClusterViews:
    """Adds to a snapshot the models that are listed, and the requests of this frontend."""

    def __init__(
        self,
        reader: ClusterReader,
        models: ModelDirectory,
        requests: RecentRequests,
        paths: RequestPaths,
        history: ClusterHistory,
        head: Mapping[str, Any],
    ) -> None:
        """`head` is what is the same in all documents."""
        self._reader = reader
        self._models = models
        self._requests = requests
        self._paths = paths
        self._history = history
        self._head = dict(head)
        self._lock = asyncio.Lock()
        self._seen: Sight | None = None
        self._views: dict[Viewer, dict[str, Any]] = {}  # of it

    async def view(self, viewer: Viewer) -> dict[str, Any]:
        """Raises ServiceUnavailable."""
        async with self._lock:
            try:
                seen = await self._look()
            except BrokerError as exc:
                raise ServiceUnavailable("The cluster cannot be seen now.") from exc
            if viewer not in self._views:
                self._views[viewer] = cluster_view(seen, viewer, self._head)
            return self._views[viewer]

    async def _look(self) -> Sight:
        """Raises BrokerError."""
        snapshot = await self._reader.snapshot()
        if self._seen is None or self._seen.snapshot is not snapshot:
            requests = self._requests.seen()
            self._seen = Sight(
                snapshot,
                self._history.note(snapshot),
                [each.card for each in self._models.named() if each.adapter is None],
                requests,
                await self._paths.read(requests),
            )
            self._views = {}
        return self._seen
