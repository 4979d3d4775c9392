"""A further connection of a role, under another user, which goes where the first one goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from nats.aio.client import Client

from shared.config import ClusterConfig
from shared.event_wait import beat_s
from shared.failover.server_watch import move
from shared.nats_client.connection import open_connection
from shared.nats_client.role_client import RoleClient
from shared.nats_login import NatsLogin
from shared.telemetry.log import get_logger

_LOOK_S = 1.0

log = get_logger(__name__)


@asynccontextmanager
async def companion_connection(
    config: ClusterConfig, name: str, role: str, login: NatsLogin, leading: Client
) -> AsyncIterator[RoleClient]:
    """`role` says whose inbox it hears, and what it is called. Raises ConfigError."""
    # One user hears one inbox.
    inbox_of = config.nats_role if login == config.login() else role
    async with open_connection(config, f"{name}-{role}", login=login, role=inbox_of) as nc:
        following = asyncio.create_task(Follower(nc, leading, role).run())
        try:
            yield nc
        finally:
            following.cancel()
            await asyncio.wait([following])


class Follower:
    """Keeps a connection at the server of another one, which leaves those that are cut off.

    An address may stand for several servers, so that a move does not always arrive: each is tried
    once, until both are at the same server or one of them is elsewhere.
    """

    def __init__(self, nc: Client, leading: Client, role: str) -> None:
        self._nc = nc
        self._leading = leading
        self._role = role
        self._tried: set[tuple[str, str]] = set()  # ids of servers, from and to

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._maybe_follow()
            await asyncio.sleep(beat_s(_LOOK_S))

    async def _maybe_follow(self) -> None:
        target = self._leading.connected_url
        if target is None or not self._nc.is_connected:
            return
        here, there = _server_id(self._nc), _server_id(self._leading)
        if here == there:
            self._tried.clear()
        elif (here, there) not in self._tried:
            self._tried.add((here, there))
            log.info(
                "nats_companion_follows",
                role=self._role,
                target=f"{target.hostname}:{target.port}",
            )
            await move(self._nc, target)


def _server_id(nc: Client) -> str:
    """The id of the server as such: it may be known by several addresses."""
    return str(nc._server_info["server_id"])
