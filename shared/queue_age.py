"""How long the oldest request of a consumer has been waiting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shared.jetstream import JetStream, parse_time


async def oldest_wait_s(js: JetStream, stream: str, info: Mapping[str, Any]) -> float:
    """By the server's clock, of what was queued first behind what it has delivered last.

    `info` is what the server tells of the consumer. Raises BrokerError.
    """
    if not info["num_pending"]:
        return 0.0
    config = info["config"]
    subjects = config.get("filter_subjects") or [config["filter_subject"]]
    seq = info["delivered"]["stream_seq"] + 1
    found = [await js.get_next(stream, subject, seq) for subject in subjects]
    now = parse_time(info["ts"])
    return max(((now - one.time).total_seconds() for one in found if one), default=0.0)
