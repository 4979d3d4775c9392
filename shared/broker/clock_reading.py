"""How long ago a message was stored, told by the clock that stamped it and by no other."""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shared.errors import BrokerUnavailable


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The clock of a stream's leader, read once and carried on by our own monotonic clock.

    Neither hosts nor servers agree on the time, and a stream changes its leader. So a message
    counts as stored when its leader's clock said so, or when this leader took over if that was
    later: what an earlier leader stamped is at least that old, whatever its clock said.
    """

    leader_now: datetime.datetime
    leader_since: datetime.datetime | None  # None: a server that is alone
    read_at: float = field(default_factory=time.monotonic)

    @classmethod
    def of_info(cls, info: Mapping[str, Any]) -> ClockReading:
        """Reads the answer to `STREAM.INFO`. Raises BrokerUnavailable where no leader gave it."""
        cluster = info.get("cluster") or {}
        since = cluster.get("leader_since")
        if since is None and cluster.get("raft_group"):
            raise BrokerUnavailable("the stream has no leader that could tell the time")
        return cls(parse_time(info["ts"]), parse_time(since) if since else None)

    @property
    def reading_age_s(self) -> float:
        """Seconds since it was read."""
        return time.monotonic() - self.read_at

    def age_s(self, stored_at: datetime.datetime) -> float:
        """Seconds since a message of the stream was stored: never more than it was."""
        since = stored_at if self.leader_since is None else max(stored_at, self.leader_since)
        return max(0.0, (self.leader_now - since).total_seconds() + self.reading_age_s)


def parse_time(text: str) -> datetime.datetime:
    """RFC 3339 with up to nanoseconds, as the server writes it; microseconds are kept."""
    return datetime.datetime.fromisoformat(text)
