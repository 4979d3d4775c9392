"""The adapter that a request runs with, as far as its plan has to know it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Adapter:
    """Requests of one step that share it are computed together; its weights are the model's."""

    adapter_id: str
