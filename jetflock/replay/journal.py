"""What has been compared, a JSON line each: who is cut short goes on where the last one ended."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from jetflock.replay.comparison import NAMES, Comparison
from jetflock.replay.comparison_report import ComparisonReport
from shared.errors import ConfigError

_LEFT_OUT = ("token_ids", "logprobs", "top_logprobs")  # the texts and numbers are what is read

Key = tuple[str, int]  # a stream's id, and which choice of it


class Journal:
    """A file whose first line says what is compared with what. It holds texts of clients: it is
    made so that its owner alone may read it.
    """

    def __init__(self, path: Path, head: dict[str, Any]) -> None:
        """Reads what is there. Raises ConfigError where it is of something else."""
        self.path = path
        self.report = ComparisonReport()
        self.done: set[Key] = set()
        self.cursor: str | None = None  # behind it is what has not been looked at
        self.since: int | None = None  # unix seconds: what ended before is not compared
        try:
            self._file = open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b")  # noqa: SIM115
        except OSError as exc:
            raise ConfigError(f"journal {path}: {exc.strerror}") from exc
        whole = self._file.read()
        whole = whole[: whole.rfind(b"\n") + 1]  # the last line of one that was killed is none
        self._file.truncate(len(whole))
        self._file.seek(len(whole))
        if not whole:
            self._write(head)
            return
        for number, line in enumerate(whole.splitlines()):
            entry = self._read(number, line)
            if number == 0 and entry != head:
                raise ConfigError(
                    f"journal {path} is of {json.dumps(entry)}, this is {json.dumps(head)}: "
                    "name another file"
                )
            if number:
                self._note(entry)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._file.close()

    def add(self, key: Key, comparison: Comparison) -> None:
        """It has been made."""
        facts = comparison.facts()
        for name in NAMES:
            run = facts[name]
            facts[name] = {field: run[field] for field in run if field not in _LEFT_OUT}
            facts[name]["num_tokens"] = len(run["token_ids"])
        self._add({"id": key[0], "choice": key[1], **facts})

    def add_failure(self, key: Key, why: str) -> None:
        """It cannot be made."""
        self._add({"id": key[0], "choice": key[1], "failed": why})

    def add_cursor(self, cursor: str, num_skipped: int) -> None:
        """All before it has been looked at; of that so many were left out, being too old."""
        self._add({"cursor": cursor, "skipped": num_skipped})

    def add_since(self, since: int) -> None:
        """What ended before is not compared."""
        self._add({"since": since})

    def query(self, model: str | None) -> dict[str, str | int]:
        """Asks for the kept streams that have not been looked at."""
        given = {"model": model, "since": self.since, "after": self.cursor}
        return {name: value for name, value in given.items() if value is not None}

    def entries(self) -> Iterator[dict[str, Any]]:
        """All comparisons that were made."""
        with self.path.open("rb") as file:
            for number, line in enumerate(file):
                entry = self._read(number, line)
                if "equal" in entry:
                    yield entry

    def _add(self, entry: dict[str, Any]) -> None:
        self._write(entry)
        self._note(entry)

    def _note(self, entry: dict[str, Any]) -> None:
        if "cursor" in entry:
            self.cursor = entry["cursor"]
        elif "since" in entry:
            self.since = entry["since"]
        else:
            self.done.add((entry["id"], entry["choice"]))
        self.report.add(entry)

    def _write(self, entry: dict[str, Any]) -> None:
        self._file.write(json.dumps(entry, ensure_ascii=False).encode() + b"\n")
        self._file.flush()

    def _read(self, number: int, line: bytes) -> dict[str, Any]:
        """Raises ConfigError."""
        try:
            return dict(json.loads(line))
        except (ValueError, TypeError) as exc:
            raise ConfigError(f"journal {self.path}: line {number + 1} is none of ours") from exc
