"""Which service a command means when it is told none: the `jetflock serve` that runs here."""

# No `from __future__ import annotations` here: cyclopts reads the types of the fields.

import dataclasses
import ipaddress
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from deploy.local.running_stack import RunningStack, running_stacks
from shared.config import ClusterConfig
from shared.errors import ConfigError, JetflockError
from shared.nats_login import read_secret

DEFAULT_URL = "http://127.0.0.1:8000"
_NATS_PORT = 4222
_PROBE_S = 1.0

Config = TypeVar("Config", bound=ClusterConfig)


class ServiceError(JetflockError):
    """The service refused, failed, or does not answer."""

    exit_status = 1


@dataclass(frozen=True, kw_only=True)
class ServiceConfig(ClusterConfig):
    """Flags of a command that looks at, or after, a service that runs."""

    nats_url: str = ""
    """NATS servers, comma separated; by default those of the jetflock serve that runs here, else
    nats://127.0.0.1:4222."""


def with_service(config: Config, *, waits: bool = False) -> Config:
    """The same with the NATS that is meant. Raises ConfigError when that cannot be known, or when
    nobody listens there, unless the caller `waits` for its start.
    """
    if not config.nats_url:
        config = _with_found(config)
    if not waits:
        check_listens(config.nats_url)
    return config


def check_listens(nats_url: str) -> None:
    """Raises ConfigError when all of these are on this machine and nothing listens there."""
    if not _is_refused(nats_url):
        return
    stacks = running_stacks()
    here = " or ".join(f"{stack.nats_url} ({stack.model})" for stack in stacks)
    raise ConfigError(
        f"nothing listens at {nats_url}; "
        + (f"jetflock serve is at {here}" if here else "no jetflock serve runs here: start one")
        + ", or name another NATS server"
    )


def frontend_url(named: str = "") -> str:
    """What --url names, without the /v1 that SDKs want; else the URL of the `jetflock serve` that
    runs here, else the default. Raises ConfigError.
    """
    if named:
        return named.rstrip("/").removesuffix("/v1")
    stacks = running_stacks()
    if not stacks:
        return DEFAULT_URL
    return choose_stack(stacks, "--url", lambda stack: stack.url).url


def frontend_urls(named: str) -> list[str]:
    """The same of several, comma separated."""
    urls = (named or frontend_url()).split(",")
    return [frontend_url(url.strip()) for url in urls if url.strip()]


def chosen_key(api_key: str | None, api_key_file: Path | None) -> str | None:
    """The key that a command sends: of its flag, or in its file. Raises ConfigError."""
    return api_key if api_key_file is None else read_secret(api_key_file)


def _with_found(config: Config) -> Config:
    stacks, default = running_stacks(), ClusterConfig.nats_url
    if not stacks or (_listens(default) and all(each.nats_url != default for each in stacks)):
        if not stacks:
            return dataclasses.replace(config, nats_url=default)
        stacks = [*stacks, RunningStack(0, "", default, config.prefix, "a nats-server", 0.0)]
    stack = choose_stack(stacks, "--nats-url", lambda each: each.nats_url)
    is_default = config.prefix == ClusterConfig.prefix
    prefix = stack.prefix if is_default else config.prefix
    return dataclasses.replace(config, nats_url=stack.nats_url, prefix=prefix)


def choose_stack(
    stacks: Sequence[RunningStack], flag: str, address: Callable[[RunningStack], str]
) -> RunningStack:
    """The only one; a person at a terminal is asked. Raises ConfigError."""
    if len(stacks) == 1:
        return stacks[0]
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        known = " or ".join(f"{flag} {address(each)} ({each.model})" for each in stacks)
        raise ConfigError(f"several services run here; choose one: {known}")
    for number, each in enumerate(stacks, 1):
        sys.stderr.write(f"  {number}  {each.model}  {address(each)}\n")
    sys.stderr.write(f"Several services run here. Which one (1 to {len(stacks)})? ")
    sys.stderr.flush()
    answer = sys.stdin.readline().strip()
    if not answer.isdecimal() or not 1 <= int(answer) <= len(stacks):
        raise ConfigError(f"{answer!r} is none of them; {flag} names one")
    return stacks[int(answer) - 1]


def _is_refused(nats_url: str) -> bool:
    """Whether all of these refuse a connection on this machine: waiting would change nothing."""
    urls = [url.strip() for url in nats_url.split(",") if url.strip()]
    return bool(urls) and all(_is_loopback(url) and not _listens(url) for url in urls)


def _is_loopback(url: str) -> bool:
    host = _address(url)[0]
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listens(url: str) -> bool:
    """Whether the connection is not refused: a server that is slow is not absent."""
    try:
        with socket.create_connection(_address(url), timeout=_PROBE_S):
            return True
    except ConnectionRefusedError:
        return False
    except OSError:
        return True


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url if "://" in url else f"nats://{url}")
    try:
        return parts.hostname or "", parts.port or _NATS_PORT
    except ValueError:  # no number: connecting will tell
        return "", 0
