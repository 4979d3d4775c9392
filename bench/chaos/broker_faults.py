"""Faults of the only nats-server: it dies, stands still, has no room, or loses what it stored."""

from __future__ import annotations

import asyncio

from bench.chaos.fault_class import FaultClass
from bench.chaos.field import Field
from bench.chaos.full_disk import Ballast
from bench.chaos.stored_bytes import flip_byte

_PAUSE_S = 3.0
_FULL_S = 4.0


async def broker_kill(field: Field) -> None:
    broker = field.broker
    strike = field.strike("broker_kill", await field.aim())
    await broker.kill()
    await asyncio.sleep(field.rng.uniform(0.0, 2.0))
    await broker.start()
    strike.end_outage()


async def broker_restart(field: Field) -> None:
    broker = field.broker
    strike = field.strike("broker_restart", await field.aim())
    await broker.terminate()
    await broker.start()
    strike.end_outage()


async def broker_pause(field: Field) -> None:
    broker = field.broker
    strike = field.strike("broker_pause", await field.aim())
    broker.pause()
    try:
        await asyncio.sleep(_PAUSE_S)
    finally:
        broker.resume()
    strike.end_outage()


async def disk_full(field: Field) -> None:
    """The store's volume has no byte left. Then it has, and an operator starts the server again."""
    broker = field.broker
    strike = field.strike("disk_full", await field.aim())
    with Ballast.fill(broker.store):
        await asyncio.sleep(_FULL_S)
    await broker.terminate()
    await broker.start()
    strike.end_outage()


async def flipped_byte(field: Field) -> None:
    """A byte of the stored token log is another one when the server comes back."""
    broker = field.broker
    strike = field.strike("flipped_byte", await field.aim())
    await broker.kill()
    flip_byte(broker.store, field.flock.cluster.subjects.tokens_stream, field.rng)
    await broker.start()
    strike.end_outage()


BROKER_FAULTS: dict[str, FaultClass] = {
    "broker_kill": FaultClass(broker_kill, 3.0),
    "broker_restart": FaultClass(broker_restart, 3.0),
    "broker_pause": FaultClass(broker_pause, 3.0),
    "disk_full": FaultClass(disk_full, is_mixable=False),
    "flipped_byte": FaultClass(flipped_byte, is_mixable=False),
}
