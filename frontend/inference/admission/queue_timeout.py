"""How long a request may wait until a worker claims it: a field of every body."""

from __future__ import annotations

from typing import Any

from shared.errors import InvalidRequest

FIELD = "queue_timeout_s"


def take_queue_timeout(body: dict[str, Any], longest_s: float) -> float:
    """Take it out of a body; 0: no bound but the deadline. Raises InvalidRequest.

    `longest_s` is what a request may ask for at most, and gets by default; 0: as long as it likes.
    """
    value = body.pop(FIELD, None)
    if value is None:
        return longest_s
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(f"'{FIELD}' must be a number", param=FIELD, code="invalid_type")
    if not 0 < value < float("inf"):
        raise InvalidRequest(f"'{FIELD}' is {value}, must be seconds above 0", param=FIELD)
    return min(float(value), longest_s) if longest_s else float(value)
