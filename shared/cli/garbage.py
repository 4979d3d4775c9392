"""Garbage collection of a long-lived role, from its first import on."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing_much() -> Iterator[None]:
    """What is imported stays: to look through it again and again for garbage takes up to a fifth of
    the time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def settle_garbage() -> None:
    """Call when a role is wired, before it serves.

    What exists now stays for ever, so no collection needs to look at it again; tokens make
    short-lived objects without cycles, so cycles are looked for rarely.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
