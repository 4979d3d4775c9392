"""Findings as a person and as a program read them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from jetflock.command_line.output import print_json
from jetflock.doctor.finding import Finding, Verdict

_STYLES = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "bold red"}


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
