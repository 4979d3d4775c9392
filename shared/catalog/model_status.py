"""Whether somebody serves a model, or will: judged by the heartbeats of workers and supervisors."""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import msgspec

from shared.broker.kv_bucket import KvEntry, readable
from shared.protocol.model_cards import ModelCard
from shared.protocol.role_cards import SUPERVISOR, RoleCard, WorkerState


class ModelStatus(enum.StrEnum):
    """What can be expected of a model, in the order in which models are offered."""

    READY = "ready"  # a worker takes requests
    LOADING = "loading"  # workers are on their way
    PAUSED = "paused"  # workers take nothing until an operator lets them
    IDLE = "idle"  # no worker lives; one is started for requests, or expected
    FAILED = "failed"  # its workers die again and again before they are ready
    ABSENT = "absent"  # nobody serves it, and nobody is known to be about to

    @property
    def has_hope(self) -> bool:
        """Whether a request that waits may be taken."""
        return self not in (ModelStatus.FAILED, ModelStatus.ABSENT)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What workers do not do, whatever the card of their model says: as their own cards tell it."""

    takes_no_images: bool = False
    takes_no_embeds: bool = False
    tells_no_hidden: bool = False

    def with_another(self, other: Limits) -> Limits:
        """The status of both: what one of them does is done."""
        names = Limits.__struct_fields__
        return Limits(**{name: getattr(self, name) and getattr(other, name) for name in names})


NO_LIMITS = Limits()


class Standing(NamedTuple):
    """A model's status, of one that failed the last words of its workers, and what they lack."""

    status: ModelStatus
    failure: str = ""
    limits: Limits = NO_LIMITS


class _WorkerStanding(Limits, frozen=True, kw_only=True):
    """What counts here of a worker card."""

    pool: str
    state: str

    @property
    def is_at_work(self) -> bool:
        """Whether it has loaded the model, and goes on to take requests."""
        return self.state not in _NOT_AT_WORK


_NOT_AT_WORK = (WorkerState.LOADING, WorkerState.DRAINING, WorkerState.HUNG)
_PAUSED = (WorkerState.PAUSED, WorkerState.FROZEN, WorkerState.UPDATING)


@dataclass(frozen=True, slots=True)
class PoolHeartbeats:
    """The states of workers, and the supervisors, by pool."""

    states: dict[str, list[str]]
    supervisors: dict[str, list[RoleCard]]
    limits: dict[str, Limits] = field(default_factory=dict)  # of all that are at work

    @classmethod
    def of(cls, workers: Iterable[KvEntry], roles: Iterable[KvEntry]) -> Self:
        """Reads the entries of both buckets; what cannot be read is nobody's heartbeat."""
        states: dict[str, list[str]] = defaultdict(list)
        limits: dict[str, Limits] = {}
        for worker in readable(_WorkerStanding, workers):
            states[worker.pool].append(worker.state)
            if worker.is_at_work:
                limits[worker.pool] = worker.with_another(limits.get(worker.pool, worker))
        supervisors: dict[str, list[RoleCard]] = defaultdict(list)
        for card in readable(RoleCard, roles):
            if card.role == SUPERVISOR:
                supervisors[card.pool].append(card)
        return cls(states, supervisors, limits)

    def has(self, pool: str) -> bool:
        """Whether somebody serves the model, or looks after its workers."""
        return bool(self.states.get(pool) or self.supervisors.get(pool))

    def has_served(self, pool: str) -> bool:
        """Whether a worker lives that has loaded the model."""
        return any(state != WorkerState.LOADING for state in self.states.get(pool, ()))

    def standing(self, card: ModelCard) -> Standing:
        """How the model with this card stands."""
        states = self.states.get(card.pool, ())
        supervisors = self.supervisors.get(card.pool, ())
        limits = self.limits.get(card.pool, NO_LIMITS)
        if WorkerState.READY in states:
            return Standing(ModelStatus.READY, limits=limits)
        if any(state in _PAUSED for state in states):
            return Standing(ModelStatus.PAUSED, limits=limits)
        if failure := _failure_of_all(supervisors):
            return Standing(ModelStatus.FAILED, failure)
        if WorkerState.LOADING in states:
            return Standing(ModelStatus.LOADING)
        if supervisors or card.is_kept:
            return Standing(ModelStatus.IDLE)
        return Standing(ModelStatus.ABSENT)


def _failure_of_all(supervisors: Sequence[RoleCard]) -> str:
    """One that does not fail is hope enough."""
    if not all(card.failure for card in supervisors):
        return ""
    return supervisors[0].failure if supervisors else ""
