"""What a fault is, and what is demanded after it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from bench.chaos.field import Field

Fault = Callable[[Field], Awaitable[None]]


class FaultFailed(Exception):
    """A fault did not have the effect that it must have."""


class FaultClass(NamedTuple):
    """A fault, and how soon the streams of its victim must move again.

    The limit is `limit_s`, plus `ack_wait` where that is what ends the wait. None: no limit is
    promised; what it takes is reported.
    """

    fault: Fault
    limit_s: float | None = None
    has_ack_wait: bool = False
    is_mixable: bool = True
