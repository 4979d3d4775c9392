"""Connections to one server, kept while they are of use."""

from __future__ import annotations

import asyncio
from types import TracebackType

from jetflock.bench.http_connection import HttpConnection, ResponseReader, StaleConnection
from jetflock.bench.target import Target


class ConnectionPool:
    """Holds as many connections as there are requests at a time."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._idle: list[HttpConnection] = []

    async def __aenter__(self) -> ConnectionPool:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def exchange(self, payload: bytes, reader: ResponseReader) -> None:
        """Raises OSError: nobody listens, or the answer was cut."""
        connection = await self._connection()
        try:
            try:
                await connection.exchange(payload, reader)
            except StaleConnection:
                connection = await self._open()
                await connection.exchange(payload, reader)
        except BaseException:
            connection.close()
            raise
        if connection.is_usable:
            self._idle.append(connection)
        else:
            connection.close()

    async def _connection(self) -> HttpConnection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                return connection
        return await self._open()

    async def _open(self) -> HttpConnection:
        target = self._target
        _, connection = await asyncio.get_running_loop().create_connection(
            HttpConnection, target.host, target.port, ssl=target.tls
        )
        return connection
