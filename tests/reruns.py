"""Which tests may run again after a failure, and who says at once that one has failed."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
# What these find is rare and real: a failure that does not come again is one all the same.
ONCE_ONLY = ("simulation", "shared", "worker", "detok")
# These start clusters of real servers, whose elections take as long as the machine lets them.
CLUSTERS = ("shared",)
# A mark of those that ask how long something took, or what a lease of a second survives: a machine
# that was busy for a moment is no failure of ours.
TIMED = "timed"
# CPython 3.11 says so where a collection of garbage comes in the middle of parsing, and parses, too
# (a traceback that is told): it is no failure of ours.
OF_PYTHON = "SystemError: AST constructor recursion depth mismatch"
_MAX_WHY_LEN = 2000


def forbid_reruns(items: Iterable[pytest.Item]) -> None:
    """A mark of a test counts more than --reruns of the command line."""
    for item in items:
        folder = _folder_of(item.path)
        is_cluster = folder in CLUSTERS and item.get_closest_marker("integration")
        if folder in ONCE_ONLY and not is_cluster and not item.get_closest_marker(TIMED):
            item.add_marker(pytest.mark.flaky(reruns=1, only_rerun=[OF_PYTHON]))


@functools.cache
def _folder_of(path: Path) -> str:
    """Of the tests; empty: it is no file of theirs."""
    return path.relative_to(ROOT).parts[0] if path.is_relative_to(ROOT) else ""


class FailureTeller:
    """Prints the name of a test when it has failed, in the middle of the dots, and why, when it
    runs again: nobody else says that.
    """

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._reporter.ensure_newline()
            self._reporter.write_line(f"FAILED {report.nodeid} ({report.when})", red=True)
        elif str(report.outcome) == "rerun":  # of pytest-rerunfailures
            self._reporter.ensure_newline()
            why = report.longreprtext.strip()[-_MAX_WHY_LEN:]
            self._reporter.write_line(f"AGAIN {report.nodeid} ({report.when}):\n{why}", yellow=True)
