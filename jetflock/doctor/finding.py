"""What one check has found, and all findings as a person and as a program read them."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from jetflock.command_line.output import print_json


class Verdict(enum.StrEnum):
    """FAIL: it will not run; WARN: it runs, with a loss."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


_STYLES = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "bold red"}


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


def print_as_they_come(findings: Iterable[Finding]) -> list[Finding]:
    """One line each, the remedy in a second one; returns them all."""
    console = Console(highlight=False, soft_wrap=True)
    seen = []
    for finding in findings:
        verdict = Text(f"{finding.verdict:4}  ", style=_STYLES[finding.verdict])
        console.print(verdict + Text(f"{finding.area}: {finding.text}", style=""))
        if finding.remedy:
            console.print(Text(f"      remedy: {finding.remedy}"))
        seen.append(finding)
    num_failed, num_warned = _count(seen, Verdict.FAIL), _count(seen, Verdict.WARN)
    console.print(f"{len(seen)} checks: {num_failed} failed, {num_warned} warnings")
    return seen


def print_findings_json(findings: Iterable[Finding]) -> list[Finding]:
    """One object."""
    seen = list(findings)
    told = [dataclasses.asdict(finding) for finding in seen]
    print_json({"ok": not _count(seen, Verdict.FAIL), "findings": told})
    return seen


def _count(findings: list[Finding], verdict: Verdict) -> int:
    return sum(finding.verdict is verdict for finding in findings)
