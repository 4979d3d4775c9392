"""Where faults strike: the processes, and the streams that run on them."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Sequence

from bench.chaos.broker import Broker
from bench.chaos.broker_cluster import BrokerCluster
from bench.chaos.cases import Case
from bench.chaos.client import ClientRun
from bench.chaos.flock import Flock
from bench.chaos.member import Member
from bench.chaos.strike import Strike
from shared.errors import BrokerError


class Field:
    """`running` is kept by the driver; `strikes` are those that have hit so far."""

    def __init__(self, flock: Flock, rng: random.Random, cases: Sequence[Case]) -> None:
        self.flock = flock
        self.rng = rng
        self.cases = cases
        self.running: set[ClientRun] = set()
        self.strikes: list[Strike] = []
        self.common_name = ""  # of the strikes of a round that has several at once
        self._disturbed: set[int] = set()  # numbers of runs

    @property
    def num_disturbed(self) -> int:
        """Streams that ran while something struck."""
        return len(self._disturbed)

    @property
    def broker(self) -> Broker:
        """The only nats-server."""
        assert isinstance(self.flock.brokers, Broker), "a fault of a nats-server without peers"
        return self.flock.brokers

    @property
    def broker_cluster(self) -> BrokerCluster:
        assert isinstance(self.flock.brokers, BrokerCluster), "a fault of a cluster"
        return self.flock.brokers

    def pick(self, role: str) -> Member:
        return self.rng.choice(self.flock.of(role))

    async def aim(self, *victims: Member) -> list[ClientRun]:
        """The streams that these processes serve now; all of them when no victim is named."""
        if not victims:
            return list(self.running)
        single = [run for run in self.running if run.transcript.rid and not run.case.has_choices]
        role = victims[0].role
        with contextlib.suppress(BrokerError):
            if role == "worker":
                holders = await self.flock.holders([run.transcript.rid for run in single])
                names = {victim.incarnation for victim in victims}
                return [run for run in single if holders.get(run.transcript.rid) in names]
            if role == "detok":
                readers = await self.flock.readers([run.transcript.rid for run in single])
                names = {victim.incarnation for victim in victims}
                return [run for run in single if readers.get(run.transcript.rid) in names]
        frontends = self.flock.of("frontend")
        indices = {frontends.index(victim) for victim in victims if victim in frontends}
        return [run for run in self.running if run.frontend in indices]

    def strike(self, name: str, hits: Sequence[ClientRun] = ()) -> Strike:
        """The fault is there now: whoever runs is disturbed."""
        numbers = frozenset(run.number for run in hits if run in self.running)
        strike = Strike(self.common_name or name, numbers, time.monotonic(), len(self.running))
        for run in self.running:
            run.strikes.append(strike)
            self._disturbed.add(run.number)
        self.strikes.append(strike)
        return strike
