"""What a stream may never show, and how a suite counts it."""

from __future__ import annotations

import enum
from typing import NamedTuple


class ViolationKind(enum.StrEnum):
    """The four ways to break the promise."""

    LOST = "lost"  # accepted, and never ended
    DUPLICATED = "duplicated"  # something came twice
    GAP = "gap"  # something is missing in the middle
    WRONG = "wrong"  # something else than in the undisturbed run
    FAILED = "failed"  # accepted, and ended in an error that nothing explains


class Violation(NamedTuple):
    """One broken promise."""

    kind: ViolationKind
    detail: str

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.detail}"
