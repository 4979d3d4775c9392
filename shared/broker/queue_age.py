"""How long the oldest request of a consumer has been waiting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shared.broker.jetstream import JetStream

_READING_S = 1.0  # several consumers are looked at together


async def oldest_wait_s(js: JetStream, stream: str, info: Mapping[str, Any]) -> float:
    """Seconds, by the stream's own clock, that the first request behind the last delivered one
    waits.

    `info` is what the server tells of the consumer. Raises BrokerError.
    """
    if not info["num_pending"]:
        return 0.0
    config = info["config"]
    subjects = config.get("filter_subjects") or [config["filter_subject"]]
    seq = info["delivered"]["stream_seq"] + 1
    found = [await js.get_next(stream, subject, seq) for subject in subjects]
    clock = await js.clock(stream, _READING_S)
    return max((clock.age_s(one.time) for one in found if one), default=0.0)
