"""What the roles alive know: each tells the highest feature level that it can in its card."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shared.cluster import Cluster
from shared.errors import ProtocolError
from shared.protocol.codec import unpack_map

_WORKER = "worker"


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
