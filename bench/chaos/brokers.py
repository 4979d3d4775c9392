"""The nats-servers of a run, as the rest of the suite sees them: one, or a cluster of three."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bench.chaos.broker import Broker


class Brokers(Protocol):
    """Runs from `start` to `kill`; whatever a fault did to a server, it is undone by the fault."""

    @property
    def servers(self) -> Sequence[Broker]: ...

    async def start(self) -> None:
        """Returns when messages can be stored."""

    async def kill(self) -> None: ...

    async def is_whole(self) -> bool:
        """Whether every server runs and holds all that is stored."""


def url_of(brokers: Brokers) -> str:
    """What a role is told that reaches every server directly."""
    return ",".join(server.url for server in brokers.servers)
