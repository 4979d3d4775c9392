"""Faults of roles, of their connections and of their clients: each hits, waits, and lets go."""

from __future__ import annotations

import asyncio
import contextlib
import signal

from bench.chaos.broken_messages import send_broken_messages
from bench.chaos.cases import POISON_SEED, Case
from bench.chaos.client import ClientRun
from bench.chaos.fault_class import Fault, FaultClass, FaultFailed
from bench.chaos.field import Field
from bench.chaos.member import Member

_WOKEN_S = 0.7  # stopped so much longer than ack_wait
_STALL_S = 4.0
_PAUSE_S = 3.0
_STORM_CLIENTS = 30


async def _struck(field: Field, role: str, name: str) -> Member:
    """Who is hit by the fault, from now on."""
    victim = field.pick(role)
    field.strike(name, await field.aim(victim))
    return victim


def killed(role: str, name: str, signum: signal.Signals = signal.SIGKILL) -> Fault:
    """The process gets a signal that ends it; its supervisor starts another one."""

    async def fault(field: Field) -> None:
        victim = field.pick(role)
        hits = await field.aim(victim)
        if role == "worker":
            await field.flock.work.read(victim)
        field.strike(name, hits)
        pid = victim.kept.pid
        victim.signal(signum)
        while victim.kept.pid in (pid, None):  # noqa: ASYNC110 - its supervisor is waited for
            await asyncio.sleep(0.05)

    return fault


async def engine_kill(field: Field) -> None:
    worker = await _struck(field, "worker", "engine_kill")
    if (engine := worker.engine) is not None:
        engine.kill()
        while worker.engine in (engine, None):  # noqa: ASYNC110 - its worker is waited for
            await asyncio.sleep(0.05)


def stopped(role: str, name: str) -> Fault:
    """SIGSTOP for longer than the server waits for a sign of life; then it wakes up."""

    async def fault(field: Field) -> None:
        victim = await _struck(field, role, name)
        victim.signal(signal.SIGSTOP, with_engine=True)
        try:
            # Whoever gets its requests may wait for its heartbeat once more, for half of that.
            await asyncio.sleep(field.flock.plan.ack_wait_s * 1.5 + _WOKEN_S)
        finally:
            victim.signal(signal.SIGCONT, with_engine=True)

    return fault


async def engine_stop(field: Field) -> None:
    """The engine hangs, its I/O process lives."""
    worker = field.pick("worker")
    hits = await field.aim(worker)
    engine = worker.engine
    if engine is None:
        return
    field.strike("engine_stop", hits)
    engine.suspend()
    try:
        await asyncio.sleep(field.flock.plan.ack_wait_s * 1.5 + _WOKEN_S)
    finally:
        if engine.is_running():
            engine.resume()


def cut(role: str) -> Fault:
    """Its connection breaks, and both ends hear of it."""

    async def fault(field: Field) -> None:
        victim = await _struck(field, role, f"cut_{role}")
        victim.link.cut()

    return fault


def half_open(role: str) -> Fault:
    """Nothing arrives any more, and nobody hears that the connection is gone."""

    async def fault(field: Field) -> None:
        victim = await _struck(field, role, f"half_open_{role}")
        victim.link.half_open()
        await asyncio.sleep(field.flock.plan.ack_wait_s + _WOKEN_S)

    return fault


def slow_consumer(role: str) -> Fault:
    """It does not read from NATS until the server gives it up."""

    async def fault(field: Field) -> None:
        victim = await _struck(field, role, f"slow_{role}")
        victim.link.stall()
        try:
            await asyncio.sleep(_STALL_S)
        finally:
            victim.link.unstall()

    return fault


async def storm(field: Field) -> None:
    """Many clients come, read a little, and vanish."""
    field.strike("disconnect_storm")
    streamed = [case for case in field.cases if case.is_streamed]

    async def vanish() -> None:
        case = field.rng.choice(streamed)
        run = ClientRun(case, field.flock.http_ports, field.rng.randrange(2), grace_s=0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(field.rng.uniform(0.1, 2.0)):
                await run.run(60)

    await asyncio.gather(*(vanish() for _ in range(_STORM_CLIENTS)))


async def malformed(field: Field) -> None:
    """Garbage on every subject."""
    field.strike("malformed")
    await send_broken_messages(field.flock.cluster, field.flock.card.pool, field.rng)


async def poison(field: Field) -> None:
    """A request that kills every engine that begins it: it must end as such, and nothing else."""
    field.strike("poison")
    greedy = next(case for case in field.cases if case.kind == "greedy")
    body = {**greedy.body, "seed": POISON_SEED, "temperature": 1.0, "max_tokens": 5}
    body.pop("stream_options", None)
    run = ClientRun(Case("poison", greedy.path, {**body, "stream": False}, is_streamed=False),
                    field.flock.http_ports, 0)  # fmt: skip
    await run.run(120)
    error = run.transcript.error or {}
    if error.get("code") != "poison":
        raise FaultFailed(f"a poisonous request ended with {error or 'a result'}")


def scaled_to(num_workers: int) -> Fault:
    """Workers leave as an autoscaler lets them, and come back."""

    async def fault(field: Field) -> None:
        name = f"scale_to_{num_workers}"
        workers = field.flock.of("worker")
        leaving = field.rng.sample(workers, len(workers) - num_workers)
        hits = await field.aim(*leaving)
        strike = field.strike(name, hits)
        await asyncio.gather(*map(field.flock.stop, leaving))
        await asyncio.sleep(_PAUSE_S)
        for worker in leaving:
            field.flock.restart(worker)
        if num_workers == 0:
            await field.flock.wait_ready()
            strike.end_outage()

    return fault


ROLE_FAULTS: dict[str, FaultClass] = {
    "worker_kill": FaultClass(killed("worker", "worker_kill"), 3.0),
    "engine_kill": FaultClass(engine_kill, 3.0),
    "worker_drain": FaultClass(killed("worker", "worker_drain", signal.SIGTERM)),
    "worker_stop": FaultClass(stopped("worker", "worker_stop"), 3.0, has_ack_wait=True),
    "engine_stop": FaultClass(engine_stop, 3.0, has_ack_wait=True),
    "frontend_kill": FaultClass(killed("frontend", "frontend_kill"), 1.5),
    "frontend_drain": FaultClass(killed("frontend", "frontend_drain", signal.SIGTERM), 1.5),
    "frontend_stop": FaultClass(stopped("frontend", "frontend_stop"), 3.0, has_ack_wait=True),
    "detok_kill": FaultClass(killed("detok", "detok_kill"), 2.0),
    "detok_drain": FaultClass(killed("detok", "detok_drain", signal.SIGTERM), 2.0),
    "detok_stop": FaultClass(stopped("detok", "detok_stop"), 3.0, has_ack_wait=True),
    "cut_worker": FaultClass(cut("worker"), 3.0, has_ack_wait=True),
    "cut_detok": FaultClass(cut("detok"), 3.0, has_ack_wait=True),
    "cut_frontend": FaultClass(cut("frontend"), 3.0, has_ack_wait=True),
    "half_open_worker": FaultClass(half_open("worker"), 3.0, has_ack_wait=True),
    "half_open_detok": FaultClass(half_open("detok"), 3.0, has_ack_wait=True),
    "half_open_frontend": FaultClass(half_open("frontend"), 3.0, has_ack_wait=True),
    "slow_worker": FaultClass(slow_consumer("worker"), 3.0, has_ack_wait=True),
    "slow_detok": FaultClass(slow_consumer("detok"), 3.0, has_ack_wait=True),
    "slow_frontend": FaultClass(slow_consumer("frontend"), 3.0, has_ack_wait=True),
    "disconnect_storm": FaultClass(storm),
    "malformed": FaultClass(malformed),
    "poison": FaultClass(poison, is_mixable=False),
    "scale_to_1": FaultClass(scaled_to(1)),
    "scale_to_0": FaultClass(scaled_to(0), is_mixable=False),
}
