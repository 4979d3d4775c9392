"""What the roles alive know: each tells the highest feature level that it can in its card; and what
an operator may do with the level: see who knows what, raise it, hold it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from shared.cluster import Cluster
from shared.errors import CasConflict, ConfigError, ProtocolError
from shared.protocol.codec import unpack_map
from shared.protocol.role_cards import LevelRecord

_WORKER = "worker"
_MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class LivingLevel:
    """One process; of a card that cannot be read nothing is known, and so level 1."""

    id: str
    role: str
    host: str
    level: int


async def living_levels(cluster: Cluster) -> list[LivingLevel]:
    """The levels of all workers, frontends, detokenizers and supervisors with a heartbeat.

    Cards of any build are read, whatever else they hold. Raises BrokerError.
    """
    subjects = cluster.subjects
    workers = await cluster.bucket(subjects.workers_bucket).entries()
    roles = await cluster.bucket(subjects.roles_bucket).entries()
    return [
        *(_level(entry.key, entry.value, _WORKER) for entry in workers),
        *(_level(entry.key, entry.value, "") for entry in roles),
    ]


def _level(key: str, value: bytes, role: str) -> LivingLevel:
    try:
        card = unpack_map(value)
    except ProtocolError:
        card = {}
    level = card.get("level", 1)
    return LivingLevel(
        id=_text(card, "worker") or key,
        role=role or _text(card, "role") or "unknown",
        host=_text(card, "host"),
        level=level if isinstance(level, int) else 1,
    )


def _text(card: dict[str, Any], field: str) -> str:
    value = card.get(field, "")
    return value if isinstance(value, str) else ""


@dataclass(frozen=True, slots=True)
class LevelReport:
    """The level in force, and what the roles alive know."""

    level: int
    is_held: bool
    known_here: int  # by the build that the command is of
    roles: list[LivingLevel]


@dataclass(frozen=True, slots=True)
class LevelOrder:
    """What is asked for; None leaves it as it is."""

    to: int | None = None
    hold: bool | None = None
    force: bool = False  # also where a role alive knows less: it leaves then

    async def carry_out(self, cluster: Cluster) -> LevelReport:
        """Raises ConfigError for what cannot be, BrokerError."""
        stored = await cluster.level.read()
        roles = sorted(await living_levels(cluster), key=lambda role: (role.level, role.id))
        record = self._wanted(stored.record, cluster.level.known, roles)
        if record != stored.record:
            try:
                await cluster.level.put(record, stored.revision)
            except CasConflict as exc:
                raise ConfigError("somebody else has just changed the level: look again") from exc
        return LevelReport(record.level, record.is_held, cluster.level.known, roles)

    def _wanted(self, record: LevelRecord, known: int, roles: list[LivingLevel]) -> LevelRecord:
        level = record.level if self.to is None else self.to
        is_held = record.is_held if self.hold is None else self.hold
        if level < record.level:
            raise ConfigError(
                f"to is {level}, but level {record.level} is in force: it never goes down, since "
                "roles of a lower one could not read what has been written"
            )
        if level > known:
            raise ConfigError(f"to is {level}, but this version of jetflock knows {known}")
        behind = [role for role in roles if role.level < level]
        if level > record.level and behind and not self.force:
            raise ConfigError(
                f"to is {level}, but {len(behind)} roles that are alive know less: "
                f"{_named(behind)}; stop them first, or give --force: they leave by themselves"
            )
        return LevelRecord(level, is_held)


def level_facts(report: LevelReport) -> dict[str, object]:
    """The report for programs."""
    return dataclasses.asdict(report)


def _named(roles: list[LivingLevel]) -> str:
    names = [f"{role.id} ({role.level})" for role in roles[:_MAX_NAMED]]
    return ", ".join([*names, "..."] if len(roles) > _MAX_NAMED else names)
