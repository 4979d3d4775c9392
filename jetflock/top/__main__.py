"""`jetflock top`: the same look once, as JSON, or again and again on a screen."""

# No `from __future__ import annotations` here: cyclopts reads the types of the fields.

import asyncio
import contextlib
import sys
import termios
import tty
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter
from rich.console import Console
from rich.live import Live

from jetflock.command_line.output import print_json
from jetflock.commands.events import event_facts
from jetflock.running.existing_cluster import existing_cluster
from jetflock.running.running_service import ServiceConfig
from jetflock.top.snapshot_tables import snapshot_tables
from shared.admin.control_plane import worker_facts
from shared.cli.program import Program
from shared.config import FLAT
from shared.errors import BrokerError, ConfigError
from shared.event_wait import wait_event
from shared.snapshot.cluster_reader import ClusterReader
from shared.snapshot.cluster_snapshot import ClusterSnapshot
from shared.storage.streams import HEARTBEAT_INTERVAL_S

_NAME = "jetflock top"
_SUMMARY = """\
Show workers, queues, models, roles and what happens to them, every second: q leaves.

Without a terminal it is shown once."""
_WIDTH = 200  # columns of what no person looks at
_PAUSE_S = HEARTBEAT_INTERVAL_S + 0.2  # between two looks of which the second one knows rates


@dataclass(frozen=True, kw_only=True)
class TopConfig(ServiceConfig):
    """Flags of `jetflock top`."""

    interval_s: float = 1.0
    """Time between two looks."""
    once: Annotated[bool, Parameter(negative="")] = False
    """Look for a second, print, and leave."""
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False
    """The same as JSON."""


def main(config: Annotated[TopConfig, FLAT] = TopConfig()) -> None:
    """Watch."""
    if config.interval_s <= 0:
        raise ConfigError(f"interval_s is {config.interval_s:g}, must be above 0")
    console = Console(highlight=False)
    is_live = console.is_terminal and sys.stdin.isatty() and not (config.once or config.as_json)
    asyncio.run(_watch(config, console) if is_live else _print_once(config, console))


async def _print_once(config: TopConfig, console: Console) -> None:
    async with existing_cluster(config, _NAME) as cluster:
        reader = ClusterReader(cluster, max_age_s=0.0)
        try:
            await reader.snapshot()
            await asyncio.sleep(_PAUSE_S)
            seen = await reader.snapshot()
            url = cluster.config.nats_url
        except BrokerError as exc:
            raise ConfigError(f"NATS at {cluster.config.nats_url} refused: {exc}") from exc
    if config.as_json:
        print_json(snapshot_facts(seen))
    elif console.is_terminal:
        console.print(snapshot_tables(seen, url))
    else:
        Console(highlight=False, width=_WIDTH).print(snapshot_tables(seen, url))


async def _watch(config: TopConfig, console: Console) -> None:
    """Until q, or Ctrl-C. While NATS is away the last look stays."""
    leaving = asyncio.Event()
    async with existing_cluster(config, _NAME) as cluster:
        reader = ClusterReader(cluster, max_age_s=0.0)
        with _keys(leaving), Live(console=console, screen=True, auto_refresh=False) as live:
            seen: ClusterSnapshot | None = None
            while not leaving.is_set():
                note = ""
                try:
                    seen = await reader.snapshot()
                except BrokerError as exc:
                    note = f"; NATS does not answer: {exc}"
                if seen is not None:
                    tables = snapshot_tables(seen, cluster.config.nats_url, f"{note}; q leaves")
                    live.update(tables, refresh=True)
                await wait_event(leaving, config.interval_s)


@contextlib.contextmanager
def _keys(leaving: asyncio.Event) -> Iterator[None]:
    """Each key is heard at once, and not shown."""
    loop, stdin = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(stdin)

    def on_key() -> None:
        if sys.stdin.read(1) in ("q", "Q", ""):
            leaving.set()

    tty.setcbreak(stdin)
    loop.add_reader(stdin, on_key)
    try:
        yield
    finally:
        loop.remove_reader(stdin)
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)


def snapshot_facts(seen: ClusterSnapshot) -> dict[str, Any]:
    """The snapshot for a program."""
    return {
        "at": seen.at,
        "models": [
            {
                "model": card.name,
                "revision": card.revision,
                "max_context_len": card.max_context_len,
                "adapters": [adapter.name for adapter in card.adapters],
            }
            for card in seen.models
        ],
        "workers": [
            worker_facts(card)
            | {
                "phase": card.phase,
                "progress": card.progress,
                "remark": card.remark,
                "kernel_set": card.kernel_set,
                "gpu": None if card.gpu is None else msgspec.structs.asdict(card.gpu),
                "max_running": card.max_running,
                "kv_cache_usage": card.kv_cache_usage,
                "tokens_per_s": seen.tokens_per_s.get(card.worker),
                "step_age_s": seen.step_age_s.get(card.worker),
                "started_at": card.started_at,
            }
            for card in seen.workers
        ],
        "queues": [msgspec.to_builtins(depth) for depth in seen.queues],
        "roles": [msgspec.to_builtins(card) for card in seen.roles],
        "events": [event_facts(event) for event in seen.events.values()],
    }


PROGRAM = Program(name=_NAME, summary=_SUMMARY, main=main)

if __name__ == "__main__":
    PROGRAM.run()
