"""What files hold, in an object store of their own."""

from __future__ import annotations

from typing import IO

from shared.cluster import Cluster
from shared.errors import NotFound


class FileContents:
    """Names are ours. What expires is gone without a trace: the stream's age takes it."""

    def __init__(self, cluster: Cluster) -> None:
        self._objects = cluster.objects(cluster.subjects.files_bucket)

    async def put(self, name: str, content: IO[bytes]) -> int:
        """Stores it from its present position; returns its bytes.

        Raises LimitReached when the store is full, or BrokerUnavailable.
        """
        return await self._objects.put(name, content)

    async def get(self, name: str, into: IO[bytes]) -> None:
        """Raises NotFound or BrokerUnavailable."""
        try:
            await self._objects.get(name, into)
        except NotFound as exc:
            raise NotFound(f"No file {name!r} is stored.", code="file_not_found") from exc

    async def delete(self, name: str) -> None:
        """Deletes it if it is there; a full store needs no room for it. Raises BrokerError."""
        await self._objects.delete(name)

    async def erase(self, name: str) -> None:
        """Deletes it as `delete` does, and its bytes are overwritten. Raises BrokerError."""
        await self._objects.erase(name)
