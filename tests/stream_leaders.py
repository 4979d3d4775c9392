"""Who of a cluster's servers leads a stream, and making another one lead it."""

from __future__ import annotations

import time

from shared.broker.jetstream import JetStream
from shared.errors import BrokerError
from tests.time_to_err import time_to_err

_LOOK_S = 0.1
_STEP_DOWN_S = 2.0  # between two orders: an election takes less


async def leader_of(js: JetStream, stream: str) -> str:
    """Name of the server; "" while there is none, or nobody tells."""
    try:
        info = await js.api(f"STREAM.INFO.{stream}")
    except BrokerError:
        return ""
    return str(info["cluster"].get("leader", ""))


async def make_lead(js: JetStream, stream: str, server: str, timeout_s: float = 60.0) -> None:
    """Returns when this server leads it, which it does once it has all that the others have."""
    order = {"placement": {"preferred": server}}
    deadline = time.monotonic() + timeout_s
    ordered_at = float("-inf")
    while (leader := await leader_of(js, stream)) != server:
        assert time.monotonic() < deadline, f"{server} does not lead {stream}: {leader!r} does"
        if leader and time.monotonic() - ordered_at > _STEP_DOWN_S:
            ordered_at = time.monotonic()
            await _step_down(js, stream, order)
        await time_to_err(_LOOK_S)


async def _step_down(js: JetStream, stream: str, order: dict[str, dict[str, str]]) -> None:
    try:
        await js.api(f"STREAM.LEADER.STEPDOWN.{stream}", order)
    except BrokerError:
        return  # who leads it is asked again
