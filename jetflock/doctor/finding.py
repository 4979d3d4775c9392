"""What one check has found."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Verdict(enum.StrEnum):
    """FAIL: it will not run; WARN: it runs, with a loss."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; what is not ok has a remedy."""

    area: str
    verdict: Verdict
    text: str
    remedy: str = ""


def ok(area: str, text: str) -> Finding:
    """All is well."""
    return Finding(area, Verdict.OK, text)


def warn(area: str, text: str, remedy: str) -> Finding:
    """It runs, with a loss."""
    return Finding(area, Verdict.WARN, text, remedy)


def fail(area: str, text: str, remedy: str) -> Finding:
    """It will not run."""
    return Finding(area, Verdict.FAIL, text, remedy)
