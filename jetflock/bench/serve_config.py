"""Flags of `jetflock bench serve`."""

# No `from __future__ import annotations` here: cyclopts reads the types of the fields.

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from cyclopts import Parameter

from jetflock.bench.endpoint import EndpointName
from jetflock.bench.load_stage import LoadStage, swept
from jetflock.bench.slo import Slo
from jetflock.bench.target import Target
from shared.errors import ConfigError
from shared.nats_login import read_secret

_DEFAULT_NUM_REQUESTS = 200


@dataclass(frozen=True, kw_only=True)
class ServerFlags:
    """Who is asked."""

    help_group: ClassVar[str] = "Server"

    url: str = "http://127.0.0.1:8000"
    """Of any OpenAI-compatible server, with /v1 or without."""
    model: str | None = None
    """Model to ask for; by default the first of /v1/models."""
    endpoint: EndpointName = "chat"
    """Route: /v1/chat/completions, /v1/completions or /v1/embeddings."""
    api_key: str | None = None
    """Key to send; else that of the variable OPENAI_API_KEY."""
    api_key_file: Path | None = None
    """File that holds the key."""
    header: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """Header to send, "Name: value"; may be given more than once."""
    extra_body: str = "{}"
    """JSON object of more fields for each body; null leaves one of ours out."""
    insecure: Annotated[bool, Parameter(negative="")] = False
    """Do not check the server's certificate."""
    timeout_s: float = 600.0
    """Longest time of a request, with its retries."""


@dataclass(frozen=True, kw_only=True)
class LoadFlags:
    """How often."""

    help_group: ClassVar[str] = "Load"

    concurrency: int | None = None
    """Clients of a closed loop, each waiting for its answer (8); beside --request-rate, the most \
requests at a time."""
    request_rate: float | None = None
    """Open loop: requests a second, however slow the answers are."""
    burstiness: float = 1.0
    """Shape of the gamma-distributed pauses of --request-rate: 1 is Poisson, less is burstier."""
    sweep: str | None = None
    """Several stages: 1,2,4,8 at a time, or rate:1,2,4 a second."""
    num_requests: int | None = None
    """Of each stage (200, or as many as --duration-s allows)."""
    duration_s: float | None = None
    """Of each stage; requests that run then are waited for."""
    warmup: int = 1
    """Requests before the first stage, which count for nothing."""
    max_retries: int = 0
    """Send a request again after a 429, when Retry-After has passed, so many times."""
    seed: int = 0
    """Draws prompts, lengths and arrivals. Prompts sent before are found in prefix caches."""


@dataclass(frozen=True, kw_only=True)
class PromptFlags:
    """What is asked."""

    help_group: ClassVar[str] = "Prompts"

    input_len: int = 256
    """Tokens of a prompt, as the server counts them."""
    output_len: int | None = None
    """Tokens of an output (128, or what --dataset says)."""
    range_ratio: float = 0.0
    """Draw both lengths from [len * (1 - ratio), len * (1 + ratio)]."""
    lengths: Literal["fixed", "sharegpt"] = "fixed"
    """fixed: --input-len and --output-len; sharegpt: a log-normal mix like that of shared chats."""
    prefix_len: int = 0
    """Tokens of a common beginning, on top of the prompt."""
    num_prefixes: int = 1
    """How many such beginnings there are."""
    dataset: Path | None = None
    """Prompts from a file: lines of {"prompt": ...} or {"messages": ...}, or a ShareGPT file."""
    tokenizer: Path | None = None
    """tokenizer.json to count by, in place of the server's /tokenize."""


@dataclass(frozen=True, kw_only=True)
class ResultFlags:
    """What is reported of it."""

    help_group: ClassVar[str] = "Result"

    goodput: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative="")] = ()
    """Limits in ms of a good request: ttft:500 itl:50 tpot:30 e2el:10000."""
    max_error_rate: float = 0.0
    """Share of failed requests above which the status is 1."""
    json: Path | None = None
    """Write all figures to this file."""
    json_requests: Annotated[bool, Parameter(negative="")] = False
    """With those of every request."""
    plot: Path | None = None
    """Draw an .svg, or an .html page."""
    compare: Path | None = None
    """Show the figures beside those of an earlier --json file."""


@dataclass(frozen=True, kw_only=True)
class BenchServeConfig(ResultFlags, PromptFlags, LoadFlags, ServerFlags):
    """What is asked of whom, how often, and what is reported of it."""

    def check(self) -> None:
        """Raises ConfigError."""
        least: dict[str, float] = {
            "concurrency": 1,
            "num_requests": 1,
            "input_len": 1,
            "output_len": 1,
            "num_prefixes": 1,
            "prefix_len": 0,
            "warmup": 0,
            "max_retries": 0,
        }
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise ConfigError(f"{name} is {value}, must be at least {low:g}")
        for name in ("request_rate", "burstiness", "duration_s", "timeout_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"{name} is {value}, must be above 0")
        if not 0 <= self.range_ratio < 1:
            raise ConfigError(f"range_ratio is {self.range_ratio}, must be at least 0 and below 1")
        if not 0 <= self.max_error_rate <= 1:
            raise ConfigError(f"max_error_rate is {self.max_error_rate}, must be from 0 to 1")
        if self.plot is not None and self.plot.suffix not in (".svg", ".html"):
            raise ConfigError(f"plot is {self.plot}, must end in .svg or .html")

    def target(self) -> Target:
        """Raises ConfigError."""
        key = self.api_key or os.environ.get("OPENAI_API_KEY")
        if self.api_key_file is not None:
            key = read_secret(self.api_key_file)
        headers = {}
        for line in self.header:
            name, colon, value = line.partition(":")
            if not colon or not name.strip() or "\n" in line or "\r" in line:
                raise ConfigError(f'header is {line!r}, must be "Name: value"')
            headers[name.strip()] = value.strip()
        return Target.from_url(self.url, key, headers, verify=not self.insecure)

    def extra_fields(self) -> dict[str, Any]:
        """Raises ConfigError."""
        try:
            fields = msgspec.json.decode(self.extra_body)
        except msgspec.DecodeError:
            fields = None
        if not isinstance(fields, dict):
            raise ConfigError(f"extra_body is {self.extra_body!r}, must be a JSON object")
        return fields

    def stages(self) -> list[LoadStage]:
        """Raises ConfigError."""
        is_closed = self.request_rate is None
        num_requests = self.num_requests
        if num_requests is None and self.duration_s is None:
            num_requests = _DEFAULT_NUM_REQUESTS
        stage = LoadStage(
            concurrency=self.concurrency or (8 if is_closed else None),
            rate=self.request_rate,
            burstiness=self.burstiness,
            num_requests=num_requests,
            duration_s=self.duration_s,
        )
        if self.sweep is not None and self.sweep.startswith("rate:") and self.concurrency is None:
            stage = LoadStage(None, None, self.burstiness, num_requests, self.duration_s)
        return list(swept(stage, self.sweep))

    def slo(self) -> Slo | None:
        """Raises ConfigError."""
        return Slo.parse(self.goodput)

    def load_settings(self) -> dict[str, Any]:
        """What shapes the load, for the result file; no secrets."""
        names = (
            *("endpoint", "burstiness", "warmup", "max_retries", "seed", "input_len"),
            *("output_len", "range_ratio", "lengths", "prefix_len", "num_prefixes", "extra_body"),
        )
        settings = {name: getattr(self, name) for name in names}
        return settings | {
            "dataset": None if self.dataset is None else str(self.dataset),
            "goodput": list(self.goodput),
        }
