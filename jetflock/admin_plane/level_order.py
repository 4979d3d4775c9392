"""What an operator may do with the feature level: see who knows what, raise it, hold it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from shared.cluster import Cluster
from shared.errors import CasConflict, ConfigError
from shared.liveness.living_levels import LivingLevel, living_levels
from shared.protocol.role_cards import LevelRecord

_MAX_NAMED = 5


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
