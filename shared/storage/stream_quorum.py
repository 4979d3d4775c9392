"""Which of a stream's servers stand behind what one of them says of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
    """Of the answer to `STREAM.INFO`: names of the servers that have a copy and are away, do not
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
