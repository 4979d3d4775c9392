"""`jetflock replay ID`: runs a request again, and says where the tokens of both runs part."""

# No `from __future__ import annotations` here: cyclopts reads the types of the fields.

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote

from cyclopts import Parameter

from jetflock.command_line.output import print_json
from jetflock.running.http_service import HttpService, check_answer
from jetflock.running.running_service import chosen_key, frontend_url
from shared.cli.program import Program
from shared.config import FLAT
from shared.errors import ConfigError, JetflockError

_NAME = "jetflock replay"
_SUMMARY = """\
Run request ID again with its own seed and parameters, as a batch request, and compare the tokens.

With the same weights on a deterministic engine they are equal. The request has to run still, or \
to be kept (--keep-requests of the frontends). Status 1 when the tokens part."""

_SHOWN_CHARS = 60  # of each text, around where they part


class Parted(JetflockError):
    """The tokens are not the same."""

    exit_status = 1


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """Flags of `jetflock replay`."""

    url: str = ""
    """Of a frontend; by default that of the jetflock serve that runs here, else
    http://127.0.0.1:8000."""
    api_key: str | None = None
    """Key to send: that of the request."""
    api_key_file: Path | None = None
    """File that holds the key."""
    choice: int = 0
    """Which of n choices."""
    at: int = 0
    """Begin with so many tokens of the first run."""
    to: int | None = None
    """Compare so many tokens; by default all that the first run has."""
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False
    """Print both runs and what they differ in as JSON."""

    def check(self) -> None:
        """Raises ConfigError."""
        for name, least in (("choice", 0), ("at", 0), ("to", self.at + 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name} is {value}, must be at least {least}")

    def service(self) -> HttpService:
        """Raises ConfigError."""
        key = chosen_key(self.api_key, self.api_key_file)
        return HttpService([frontend_url(self.url)], key)


class Comparison(NamedTuple):
    """Two runs: of the first, and of the second, what `/v1/streams/{id}/tokens` tells."""

    first: dict[str, Any]
    second: dict[str, Any]
    num_compared: int
    parts_at: int | None  # index of the first token that differs, or that one of them lacks

    @classmethod
    def of(cls, first: dict[str, Any], second: dict[str, Any], to: int | None) -> "Comparison":
        """`to`: so many tokens were asked for; None: all."""
        ours, theirs = first["token_ids"][:to], second["token_ids"][:to]
        num_both = min(len(ours), len(theirs))
        parts_at = next((i for i in range(num_both) if ours[i] != theirs[i]), None)
        if parts_at is None and len(ours) != len(theirs):
            parts_at = num_both
        return cls(first, second, num_both, parts_at)

    def facts(self) -> dict[str, Any]:
        """For a program."""
        return {
            "equal": self.parts_at is None,
            "parts_at": self.parts_at,
            "num_compared": self.num_compared,
            "first": self.first,
            "second": self.second,
        }

    def words(self) -> str:
        """For a person."""
        if self.parts_at is None:
            return f"{self.num_compared} tokens, all equal"
        at = self.parts_at
        lines = [f"the runs part at token {at}: {at} are equal"]
        lines += [f"  {name:6}  {_of(run, at)}" for name, run in zip(_NAMES, self[:2], strict=True)]
        same = _num_equal(self.first["text"], self.second["text"])
        start = max(0, same - _SHOWN_CHARS // 2)
        for name, run in zip(_NAMES, self[:2], strict=True):
            lines.append(f"  {name:6}  ...{run['text'][start : start + _SHOWN_CHARS]!r}")
        return "\n".join(lines)


_NAMES = ("first", "second")


def _of(run: dict[str, Any], at: int) -> str:
    """What a run has there."""
    if at >= len(run["token_ids"]):
        return f"ends ({run['finish_reason']})"
    told = f"token id {run['token_ids'][at]}"
    return told if run["logprobs"] is None else f"{told}, logprob {run['logprobs'][at]:.4f}"


def _num_equal(one: str, other: str) -> int:
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def replayed(http: HttpService, request_id: str, config: ReplayConfig) -> Comparison:
    """Raises ServiceError."""
    path = f"/v1/streams/{quote(request_id, safe='')}"
    tokens = f"{path}/tokens?choice={config.choice}"
    first = http.ask("GET", tokens)
    to = config.to if first["finish_reason"] is not None else len(first["token_ids"])
    to = to if config.to is None or to is None else min(to, config.to)
    sampling = {"seed": "source"} | ({} if to is None else {"max_tokens": to})
    body = {"choice": config.choice, "at": config.at, "sampling": sampling}
    response = http.read(
        "POST", f"{path}/fork", json=body, headers={"x-job-class": "batch"}, timeout=None
    )
    check_answer(response)
    second = http.ask("GET", f"/v1/streams/{response.headers['x-request-id']}/tokens")
    return Comparison.of(first, second, to)


def main(request_id: str, /, *, config: Annotated[ReplayConfig, FLAT] = ReplayConfig()) -> None:
    """Compare."""
    config.check()
    with config.service() as http:
        comparison = replayed(http, request_id, config)
    if config.as_json:
        print_json(comparison.facts())
    else:
        sys.stdout.write(f"{comparison.words()}\n")
    if comparison.parts_at is not None:
        raise Parted(f"the runs part at token {comparison.parts_at}")


PROGRAM = Program(name=_NAME, summary=_SUMMARY, main=main, takes_file=False)

if __name__ == "__main__":
    PROGRAM.run()
