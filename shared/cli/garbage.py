"""Garbage collection of a long-lived role."""

from __future__ import annotations

import gc


def settle_garbage() -> None:
    """Call when a role is wired, before it serves.

    What exists now stays for ever, so no collection needs to look at it again; tokens make
    short-lived objects without cycles, so cycles are looked for rarely.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
