"""What happens in one simulated run: who takes part, what is asked, and what goes wrong."""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass
from typing import Any

from shared.protocol.role_cards import WorkerRole
from tests.simulation.connection import Weather


class FaultKind(enum.Enum):
    """What can go wrong. The victim is drawn when it happens, among those that are there."""

    KILL_WORKER = "kill worker"
    KILL_WORKER_TOLD = "kill worker, its supervisor tells"
    PAUSE_WORKER = "pause worker"
    DRAIN_WORKER = "drain worker"
    KILL_ENGINE = "kill engine"
    HANG_ENGINE = "hang engine"
    KILL_DETOK = "kill detokenizer"
    PAUSE_DETOK = "pause detokenizer"
    STOP_DETOK = "stop detokenizer"
    KILL_FRONTEND = "kill frontend"
    PAUSE_FRONTEND = "pause frontend"
    RESET_CONNECTION = "reset connection"
    CUT_NETWORK = "cut network"
    CUT_WORKER = "cut off worker"
    LOSE_MESSAGES = "lose messages"
    LOSE_WORKERS = "lose messages of a worker"
    RESTART_BROKER = "restart broker"
    CLIENT_GONE = "client gone"
    CLIENT_RESUMES = "client resumes elsewhere"


_SHARES = {
    FaultKind.KILL_WORKER: 10,
    FaultKind.KILL_WORKER_TOLD: 10,
    FaultKind.PAUSE_WORKER: 12,
    FaultKind.DRAIN_WORKER: 10,
    FaultKind.KILL_ENGINE: 5,
    FaultKind.HANG_ENGINE: 3,
    FaultKind.KILL_DETOK: 8,
    FaultKind.PAUSE_DETOK: 5,
    FaultKind.STOP_DETOK: 5,
    FaultKind.KILL_FRONTEND: 6,
    FaultKind.PAUSE_FRONTEND: 3,
    FaultKind.RESET_CONNECTION: 10,
    FaultKind.CUT_NETWORK: 6,
    FaultKind.CUT_WORKER: 6,
    FaultKind.LOSE_MESSAGES: 3,
    FaultKind.LOSE_WORKERS: 3,
    FaultKind.RESTART_BROKER: 8,
    FaultKind.CLIENT_GONE: 4,
    FaultKind.CLIENT_RESUMES: 6,
}


# Faults that are only dangerous together.
_THEMES = (
    (FaultKind.PAUSE_WORKER,),
    (FaultKind.CUT_WORKER,),
    (FaultKind.PAUSE_WORKER, FaultKind.DRAIN_WORKER),
    (FaultKind.CUT_WORKER, FaultKind.DRAIN_WORKER),
    (FaultKind.LOSE_WORKERS,),
    (FaultKind.KILL_WORKER_TOLD, FaultKind.PAUSE_WORKER),
    (FaultKind.KILL_WORKER_TOLD, FaultKind.KILL_DETOK, FaultKind.CLIENT_GONE),
    (FaultKind.RESET_CONNECTION, FaultKind.RESET_CONNECTION),
    (FaultKind.RESTART_BROKER, FaultKind.PAUSE_WORKER),
    (FaultKind.CLIENT_GONE,),
)


@dataclass(frozen=True, slots=True)
class Fault:
    """It happens at a moment, or when so many messages have reached the broker."""

    kind: FaultKind
    at_s: float
    at_message: int  # counted from the first request on; 0: at the moment
    duration_s: float
    until_claimed: bool  # a pause or a cut ends when somebody else has claimed, a moment later
    draw: float  # 0 to 1: who, and how


@dataclass(frozen=True, slots=True)
class Ask:
    """What one client asks for. Clients with the same key ask for the same."""

    at_s: float
    num_prompt_tokens: int
    max_tokens: int
    stop: tuple[str, ...]
    key: str
    is_poison: bool
    deadline_s: float
    grace_s: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """Times in seconds from the moment at which everything is up."""

    roles: tuple[WorkerRole, ...]  # of the workers
    num_detoks: int
    num_frontends: int
    num_partitions: int
    step_s: float
    weather: Weather
    asks: tuple[Ask, ...]
    faults: tuple[Fault, ...]

    def describe(self) -> str:
        lines = [
            f"workers: {', '.join(self.roles)}; {self.num_detoks} detokenizers, "
            f"{self.num_frontends} frontends, {self.num_partitions} partitions, "
            f"a step takes {self.step_s * 1000:.0f} ms, {self.weather}"
        ]
        lines += [str(ask) for ask in self.asks]
        lines += [str(fault) for fault in self.faults]
        return "\n".join(lines)


def draw_schedule(rng: random.Random, rng_of_roles: random.Random) -> Schedule:
    """Small ones, so that many can be run: 1 to 3 requests, 1 to 3 faults."""
    weather = Weather()
    if rng.random() < 0.3:
        weather = Weather(0.0005, 0.004, slow_share=0.05, slow_s=rng.choice((0.02, 0.2)))
    elif rng.random() < 0.15:
        weather = Weather(0.01, 0.02)
    num_asks = rng.choice((1, 1, 2, 2, 3))
    is_keyed = rng.random() < 0.15
    has_poison = rng.random() < 0.04
    num_prompt_tokens = 100 if rng.random() < 0.15 else 3
    asks = [
        Ask(
            at_s=rng.random() * 0.4 if idx else 0.0,
            num_prompt_tokens=num_prompt_tokens,
            max_tokens=rng.randint(3, 12),
            stop=rng.choice(((), (), ("d",), ("bc", "e f"), ("ab", "a"))),
            key="",
            is_poison=has_poison and idx == 0,
            deadline_s=rng.choice((60.0, 60.0, 60.0, 60.0, 60.0, 1.0 + 4 * rng.random())),
            grace_s=rng.choice((0.0, 5.0)),
        )
        for idx in range(num_asks)
    ]
    if is_keyed:
        first = asks[0]
        asks = [Ask(**{**_fields(ask), "key": "k", **_same_body(first)}) for ask in asks]
    if rng.random() < 0.5:
        kinds = list(rng.choice(_THEMES))
    else:
        kinds = rng.choices(list(_SHARES), list(_SHARES.values()), k=rng.choice((0, 1, 1, 2, 2, 3)))
    faults = [_draw_fault(rng, kind) for kind in kinds]
    return Schedule(
        roles=_draw_roles(rng_of_roles, rng.choice((1, 2, 2, 3))),
        num_detoks=rng.choice((1, 1, 2)),
        num_frontends=rng.choice((1, 2)),
        num_partitions=rng.choice((1, 1, 1, 2)),
        step_s=rng.choice((0.005, 0.03, 0.1)),
        weather=weather,
        asks=tuple(asks),
        faults=tuple(sorted(faults, key=lambda fault: fault.at_s)),
    )


def _draw_roles(rng: random.Random, num_workers: int) -> tuple[WorkerRole, ...]:
    """In three of five schedules all of them do all."""
    roles: list[WorkerRole] = ["both"]
    if rng.random() < 0.4:
        roles = ["prefill", "decode", "decode", "both"]
    return tuple(rng.choice(roles) for _ in range(num_workers))


def _draw_fault(rng: random.Random, kind: FaultKind) -> Fault:
    at_message = 0
    if rng.random() < 0.75:
        at_message = rng.randint(1, rng.choice((12, 40, 80)))
    return Fault(
        kind=kind,
        at_s=rng.random() * 0.8,
        at_message=at_message,
        duration_s=rng.choice((0.05, 0.5, 1.5, 3.0, 6.0)) * (0.5 + rng.random()),
        until_claimed=rng.random() < 0.6,
        draw=rng.random(),
    )


def _fields(ask: Ask) -> dict[str, Any]:
    return {name: getattr(ask, name) for name in Ask.__dataclass_fields__}


def _same_body(ask: Ask) -> dict[str, Any]:
    return {
        name: getattr(ask, name)
        for name in ("num_prompt_tokens", "max_tokens", "stop", "is_poison", "deadline_s")
    }
