"""What files hold, in an object store of their own."""

from __future__ import annotations

import asyncio
from typing import IO

import nats.errors
from nats.js.errors import APIError, NotFoundError, ObjectNotFoundError
from nats.js.object_store import ObjectStore

from shared.cluster import Cluster
from shared.errors import BrokerUnavailable, LimitReached, NotFound
from shared.jetstream import ERR_STORE_FAILED

_TIMEOUT_S = 300.0  # of one file, in or out


class FileContents:
    """Names are ours. What expires is gone without a trace: the stream's age takes it."""

    def __init__(self, cluster: Cluster) -> None:
        self._nc = cluster.nc
        self._bucket = cluster.subjects.files_bucket

    async def put(self, name: str, content: IO[bytes]) -> int:
        """From its present position; returns its bytes.

        Raises LimitReached when the store is full, or BrokerUnavailable.
        """
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                info = await (await self._store()).put(name, content)  # type: ignore[arg-type]  # it needs no more than readinto
        except APIError as exc:
            if exc.err_code == ERR_STORE_FAILED and "maximum" in (exc.description or ""):
                raise LimitReached(str(exc.description), ERR_STORE_FAILED) from exc
            raise BrokerUnavailable(f"file {name} was not stored: {exc}") from exc
        except (nats.errors.Error, TimeoutError) as exc:
            raise BrokerUnavailable(f"file {name} was not stored: {exc!r}") from exc
        return info.size or 0

    async def get(self, name: str, into: IO[bytes]) -> None:
        """Raises NotFound or BrokerUnavailable."""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                store = await self._store()
                await store.get(name, writeinto=into)  # type: ignore[arg-type]  # it only writes
        except (NotFoundError, ObjectNotFoundError) as exc:
            raise NotFound(f"No file {name!r} is stored.", code="file_not_found") from exc
        except (nats.errors.Error, TimeoutError) as exc:
            raise BrokerUnavailable(f"file {name} could not be fetched: {exc!r}") from exc

    async def delete(self, name: str) -> None:
        """Also one that is not there. Raises BrokerUnavailable."""
        try:
            await (await self._store()).delete(name)
        except (NotFoundError, ObjectNotFoundError):
            pass
        except (nats.errors.Error, TimeoutError) as exc:
            raise BrokerUnavailable(f"file {name} was not deleted: {exc!r}") from exc

    async def _store(self) -> ObjectStore:
        return await self._nc.jetstream().object_store(self._bucket)
