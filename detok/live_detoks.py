"""Which detokenizers are alive, for sharing out the partitions."""

from __future__ import annotations

import time
from dataclasses import dataclass

from shared.codec import decode
from shared.errors import ProtocolError
from shared.kv_bucket import KvBucket
from shared.protocol.role_cards import RoleCard

ROLE = "detok"
_STALE_S = 2.5  # heartbeats come every second


@dataclass(slots=True)
class _Seen:
    revision: int
    changed_at: float | None  # None: never seen to change, so perhaps left by a dead process


class LiveDetoks:
    """Those others whose heartbeat is seen to be renewed.

    The card of a process that was killed stays until it expires; nothing is shared with it.
    """

    def __init__(self, roles: KvBucket, my_id: str) -> None:
        self._roles = roles
        self._my_id = my_id
        self._seen: dict[str, _Seen] = {}

    def doubt(self, detok_id: str) -> None:
        """Its lease has expired: it counts again when its heartbeat is renewed once more."""
        if (seen := self._seen.get(detok_id)) is not None:
            seen.changed_at = None

    async def others(self) -> set[str]:
        """Raises BrokerError."""
        now = time.monotonic()
        seen: dict[str, _Seen] = {}
        for entry in await self._roles.entries():
            if not _is_detok(entry.value) or entry.key == self._my_id:
                continue
            before = self._seen.get(entry.key)
            if before is None:
                seen[entry.key] = _Seen(entry.revision, None)
            elif before.revision != entry.revision:
                seen[entry.key] = _Seen(entry.revision, now)
            else:
                seen[entry.key] = before
        self._seen = seen
        return {
            key
            for key, other in seen.items()
            if other.changed_at is not None and now - other.changed_at < _STALE_S
        }


def _is_detok(card: bytes) -> bool:
    try:
        return decode(RoleCard, card).role == ROLE
    except ProtocolError:
        return False
