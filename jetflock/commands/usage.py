"""`jetflock usage`: what was used, and the bills themselves, for a person or for accounts."""

# No `from __future__ import annotations` here: cyclopts reads the types of the fields.

import csv
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

from cyclopts import Parameter

from jetflock.command_line.output import print_json, print_table
from jetflock.commands.usage_export import export_bills
from jetflock.running.http_service import HttpService
from jetflock.running.running_service import chosen_key, frontend_url
from shared.cli.program import Program
from shared.config import FLAT

_NAME = "jetflock usage"
_SUMMARY = """\
What was used, by day, tenant, key and model: the sums of the bills that are kept (--bills-ttl-s).

`jetflock usage export` writes the bills themselves, each once, for accounts."""

_COLUMNS = (
    "day", "tenant", "key", "model", "requests", "prompt", "cached", "output", "engine s",
    "repeated s", "unmeasured s",
)  # fmt: skip
_FIELDS = (
    "day", "tenant", "key", "model", "num_requests", "num_prompt_tokens", "num_cached_tokens",
    "num_output_tokens", "engine_s", "repeated_s", "unmeasured_s",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class UsageConfig:
    """Flags of `jetflock usage`."""

    url: str = ""
    """Of a frontend; by default that of the jetflock serve that runs here, else
    http://127.0.0.1:8000."""
    api_key: str | None = None
    """Key to send: a tenant sees what it has used, an operator's shows all."""
    api_key_file: Path | None = None
    """File that holds the key."""
    since: str | None = None
    """First day, like 2026-11-28 (UTC)."""
    until: str | None = None
    """Last day."""
    model: str | None = None
    """Only of this model."""
    by: str = "day,tenant,key,model"
    """What to sum by: some of day, tenant, key and model."""
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False
    """Print the answer of /v1/usage."""
    as_csv: Annotated[bool, Parameter(name="--csv", negative="")] = False
    """Print it as CSV, with a head."""


def show_usage(config: Annotated[UsageConfig, FLAT] = UsageConfig()) -> None:
    """What was used."""
    asked = {"since": config.since, "until": config.until, "model": config.model, "by": config.by}
    query = urlencode({name: value for name, value in asked.items() if value is not None})
    key = chosen_key(config.api_key, config.api_key_file)
    with HttpService([frontend_url(config.url)], key) as http:
        usage = http.ask("GET", f"/v1/usage?{query}")
    rows: list[dict[str, Any]] = usage["data"]
    if config.as_json:
        print_json(usage)
    elif config.as_csv:
        names = list(rows[0]) if rows else list(_FIELDS)
        writer = csv.DictWriter(sys.stdout, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    else:
        told = [[_text(row[name]) for name in _FIELDS] for row in rows]
        print_table(_COLUMNS, told, "Nothing was used.")
    if usage["num_lost"]:
        sys.stderr.write(
            f"{_NAME}: {usage['num_lost']} bills were removed for room before they were read: "
            "raise --bills-max-bytes\n"
        )


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if isinstance(value, float) else str(value)


_COMMANDS: dict[str, Callable[..., None]] = {"export": export_bills}

PROGRAM = Program(name=_NAME, summary=_SUMMARY, main=show_usage, commands=_COMMANDS)

if __name__ == "__main__":
    PROGRAM.run()
