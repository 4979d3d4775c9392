"""Faults of a cluster of three nats-servers, and of the network between them.

All streams count as hit: each needs leaders, and any server may lead. A leader that is gone is
followed by an election; what comes on top of that is jetflock's.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

from bench.chaos.broker import Broker
from bench.chaos.fault_class import Fault, FaultClass
from bench.chaos.field import Field
from bench.chaos.route_proxies import Way
from shared.errors import BrokerError

ELECTION_S = 9.0  # nats-server: a follower waits 4 to 9 s for its leader
_BEYOND_S = 5.0
_LIMIT_S = ELECTION_S + _BEYOND_S
_AWAY_S = (1.0, 12.0)  # shorter and longer than an election
_DELAY_S = 0.15  # of each way
_SLOW_S = 8.0

Draw = Callable[[Field], Awaitable[Broker]]


async def _leader(field: Field) -> Broker:
    """The server that leads one of the streams; any server when nobody can say."""
    subjects = field.flock.cluster.subjects
    stream = field.rng.choice(
        (
            subjects.requests_stream,
            subjects.tokens_stream,
            subjects.results_stream,
            f"KV_{subjects.owners_bucket}",
            f"KV_{subjects.workers_bucket}",
        )
    )
    with contextlib.suppress(BrokerError):
        info = await field.flock.cluster.js.api(f"STREAM.INFO.{stream}")
        if leader := info["cluster"].get("leader"):
            return field.broker_cluster.named(leader)
    return field.rng.choice(field.broker_cluster.servers)


async def _follower(field: Field) -> Broker:
    """One that does not lead that stream; of others it may be the leader."""
    leader = await _leader(field)
    others = [server for server in field.broker_cluster.servers if server is not leader]
    return field.rng.choice(others)


def _killed(name: str, draw: Draw) -> Fault:
    """kill -9, and back on its store later."""

    async def fault(field: Field) -> None:
        victim = await draw(field)
        field.strike(name, await field.aim())
        await victim.kill()
        await _away(field)
        await victim.start()

    return fault


def _stopped(name: str, draw: Draw) -> Fault:
    """SIGSTOP: its connections stand, and it may believe to lead when it wakes up."""

    async def fault(field: Field) -> None:
        victim = await draw(field)
        field.strike(name, await field.aim())
        victim.pause()
        try:
            await _away(field)
        finally:
            victim.resume()

    return fault


def _cut(name: str, draw: Draw, ways: Callable[[Field, Broker], Iterable[Way]]) -> Fault:
    """Roles reach every server, but the servers not each other."""

    async def fault(field: Field) -> None:
        victim = await draw(field)
        field.strike(name, await field.aim())
        with _without(field, list(ways(field, victim))):
            await _away(field)

    return fault


def _all_ways(field: Field, victim: Broker) -> Iterable[Way]:
    return field.broker_cluster.routes.ways_of(victim.name)


def _ways_out(field: Field, victim: Broker) -> Iterable[Way]:
    return [way for way in _all_ways(field, victim) if way.sender == victim.name]


def _ways_in(field: Field, victim: Broker) -> Iterable[Way]:
    return [way for way in _all_ways(field, victim) if way.receiver == victim.name]


def _one_link(field: Field, victim: Broker) -> Iterable[Way]:
    others = [server for server in field.broker_cluster.servers if server is not victim]
    return field.broker_cluster.routes.ways_between(victim.name, field.rng.choice(others).name)


async def slow_links(field: Field) -> None:
    """Between the servers everything takes longer."""
    routes = field.broker_cluster.routes
    field.strike("slow_links", await field.aim())
    routes.delay(_DELAY_S)
    try:
        await asyncio.sleep(_SLOW_S)
    finally:
        routes.delay(0.0)


def _several_killed(name: str, num_servers: int) -> Fault:
    """kill -9 of so many that nothing can be stored."""

    async def fault(field: Field) -> None:
        victims = field.rng.sample(field.broker_cluster.servers, num_servers)
        strike = field.strike(name, await field.aim())
        await asyncio.gather(*(victim.kill() for victim in victims))
        await _away(field)
        await asyncio.gather(*(victim.start() for victim in victims))
        strike.end_outage()

    return fault


async def quorum_cut(field: Field) -> None:
    """All three live, and none reaches another."""
    strike = field.strike("quorum_cut", await field.aim())
    with _without(field, field.broker_cluster.routes.ways):
        await _away(field)
    strike.end_outage()


async def rolling_restart(field: Field) -> None:
    """As an upgrade does it: one after the other, each whole before the next."""
    field.strike("rolling_restart", await field.aim())
    for server in field.broker_cluster.servers:
        await server.terminate()
        await server.start()
        await field.broker_cluster.wait_whole()


async def server_emptied(field: Field) -> None:
    """One comes back with an empty disk, under its old name, when the others have a leader.

    Before that its vote could make one a leader that lacks the last of what was stored.
    """
    victim = await _leader(field)
    field.strike("server_emptied", await field.aim())
    await victim.kill()
    await asyncio.to_thread(shutil.rmtree, victim.store)
    await asyncio.sleep(ELECTION_S)
    await victim.start()
    await field.broker_cluster.wait_whole()


async def _away(field: Field) -> None:
    await asyncio.sleep(field.rng.uniform(*_AWAY_S))


@contextlib.contextmanager
def _without(field: Field, ways: Sequence[Way]) -> Iterator[None]:
    routes = field.broker_cluster.routes
    routes.cut(ways)
    try:
        yield
    finally:
        routes.mend(ways)


# Two whose servers must be whole first are not mixed with others: an emptied server and one that
# is away are two copies of three.
CLUSTER_FAULTS: dict[str, FaultClass] = {
    "leader_kill": FaultClass(_killed("leader_kill", _leader), _LIMIT_S),
    "follower_kill": FaultClass(_killed("follower_kill", _follower), _LIMIT_S),
    "leader_stop": FaultClass(_stopped("leader_stop", _leader), _LIMIT_S),
    "follower_stop": FaultClass(_stopped("follower_stop", _follower), _LIMIT_S),
    "leader_cut": FaultClass(_cut("leader_cut", _leader, _all_ways), _LIMIT_S),
    "follower_cut": FaultClass(_cut("follower_cut", _follower, _all_ways), _LIMIT_S),
    "leader_mute": FaultClass(_cut("leader_mute", _leader, _ways_out), _LIMIT_S),
    "leader_deaf": FaultClass(_cut("leader_deaf", _leader, _ways_in), _LIMIT_S),
    "link_cut": FaultClass(_cut("link_cut", _leader, _one_link), _LIMIT_S),
    "slow_links": FaultClass(slow_links, _LIMIT_S),
    "quorum_kill": FaultClass(_several_killed("quorum_kill", 2), _LIMIT_S),
    "quorum_cut": FaultClass(quorum_cut, _LIMIT_S),
    "all_kill": FaultClass(_several_killed("all_kill", 3), _LIMIT_S),
    "rolling_restart": FaultClass(rolling_restart, is_mixable=False),
    "server_emptied": FaultClass(server_emptied, _LIMIT_S, is_mixable=False),
}
