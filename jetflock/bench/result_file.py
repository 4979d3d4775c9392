"""The file that `--json` writes and `--compare` reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from jetflock.bench.load_runner import StageRun
from jetflock.bench.stage_summary import StageSummary
from shared.errors import ConfigError

FORMAT = 1


class Result(msgspec.Struct, frozen=True):
    """A whole run. Latencies are in milliseconds, rates per second."""

    format: int
    made_by: str
    date: str  # ISO 8601
    url: str
    model: str
    endpoint: str
    prompts: str  # what they were made of, and how their tokens were counted
    settings: dict[str, Any]
    stages: list[StageSummary]
    requests: list[list[dict[str, Any]]] | None = None  # of each stage

    def write(self, path: Path) -> None:
        """Raises ConfigError."""
        content = msgspec.json.format(msgspec.json.encode(self), indent=1)
        try:
            path.write_bytes(content + b"\n")
        except OSError as exc:
            raise ConfigError(f"cannot write {path}: {exc.strerror}") from exc

    @classmethod
    def read(cls, path: Path) -> Result:
        """Raises ConfigError."""
        try:
            result = msgspec.json.decode(path.read_bytes(), type=cls)
        except OSError as exc:
            raise ConfigError(f"cannot read {path}: {exc.strerror}") from exc
        except msgspec.DecodeError as exc:
            raise ConfigError(f"{path} was not written by --json of this command: {exc}") from exc
        if result.format != FORMAT:
            raise ConfigError(f"{path} has format {result.format}, this version reads {FORMAT}")
        return result


def request_figures(runs: Sequence[StageRun]) -> list[list[dict[str, Any]]]:
    """A row for each request, stage by stage; times in seconds from the start of the stage."""
    return [
        [
            {
                "due_s": record.due_at - run.started_at,
                "sent_s": record.sent_at - run.started_at,
                "ended_s": record.ended_at - run.started_at,
                "status": record.status,
                "error": record.error or None,
                "ttft_s": record.ttft_s,
                "tpot_s": record.tpot_s,
                "max_itl_s": max(record.gaps_s, default=None),
                "e2e_s": record.e2e_s,
                "prompt_tokens": record.num_prompt_tokens,
                "cached_tokens": record.num_cached_tokens,
                "output_tokens": record.num_tokens_made,
                "refused": record.num_refused,
            }
            for record in run.records
        ]
        for run in runs
    ]
