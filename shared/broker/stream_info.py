"""What the answer to `STREAM.INFO` tells: which servers stand behind it, and its leader's clock."""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shared.errors import BrokerUnavailable

_ACTIVE_S = 4.0  # a leader hears each follower every second


def has_quorum(info: Mapping[str, Any], within_s: float = _ACTIVE_S) -> bool:
    """Reads in the answer to `STREAM.INFO` whether a leader gave it that has heard most of its
    group, itself included, in so many seconds.

    A server that is cut off answers too: as one that knows no leader, or as the leader that it was.
    """
    group = info.get("cluster")
    if not group:
        return True  # a single server
    if not group.get("leader"):
        return False
    peers = group.get("replicas") or []
    num_heard = sum(_silence_s(peer) < within_s for peer in peers)
    return 2 * (1 + num_heard) > 1 + len(peers)


def servers_behind(info: Mapping[str, Any], within_s: float = float("inf")) -> list[str]:
    """From the answer to `STREAM.INFO`: names of the servers that have a copy and are away, do not
    keep up, or were not heard within so many seconds.

    A server that hangs keeps up by its leader's word for a while, but is not heard any more.
    """
    peers = (info.get("cluster") or {}).get("replicas") or []
    return [
        peer["name"]
        for peer in peers
        if peer.get("offline") or not peer.get("current") or _silence_s(peer) > within_s
    ]


def _silence_s(peer: Mapping[str, Any]) -> float:
    """Since the leader heard it; one that it never heard is silent for 0 s, and not current."""
    silence_s = float(peer.get("active", 0)) / 1e9
    is_heard = silence_s > 0 or peer.get("current", False)
    return silence_s if is_heard and not peer.get("offline", False) else float("inf")


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
