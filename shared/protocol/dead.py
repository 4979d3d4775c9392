"""Requests that crashed workers."""

from __future__ import annotations

import msgspec


class Crash(msgspec.Struct, frozen=True):
    """A worker, or its engine, died under a request that had made no progress there."""

    worker: str
    claimed_at: float  # unix seconds, as all times here
    noticed_at: float  # of the record that tells it
    was_alone: bool  # nothing else ran there: the request did it
    engine_only: bool  # the engine process died, the worker's I/O process lived on


class DeadRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """`jf.dead.<pool>`: a request that was given up, whole, to be looked at or queued again."""

    rid: str
    pool: str
    job_class: str
    reason: str
    crashes: tuple[Crash, ...]
    queued_at: float
    died_at: float
    request: bytes = b""  # as it was queued; empty when no message could hold it
    prompt_object: str = ""  # object store name of our copy of a long prompt
