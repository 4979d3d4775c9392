"""`jetflock events`: what happens to the pools, for a person or a program that watches."""

# No `from __future__ import annotations` here: cyclopts reads the types of the fields.

import asyncio
import datetime
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from nats.errors import TimeoutError as NatsTimeoutError
from nats.js.api import ConsumerConfig, DeliverPolicy
from rich.console import Console

from jetflock.running.existing_cluster import existing_cluster
from jetflock.running.running_service import ServiceConfig
from shared.cli.program import Program
from shared.config import FLAT
from shared.errors import ProtocolError
from shared.protocol.codec import decode
from shared.protocol.role_cards import PoolEvent, ScaleEvent, WorkerEvent
from shared.subjects import pool_slug

_NAME = "jetflock events"
_SUMMARY = """\
Show what happens to the pools: workers that start, load, are ready, drain and are gone; how many \
there should be, and why.

Lines of JSON, unless a person looks on. They are kept for a day."""

_WAIT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class EventsConfig(ServiceConfig):
    """Flags of `jetflock events`."""

    follow: Annotated[bool, "-f"] = False
    """Go on with what comes."""
    last: int = 50
    """Begin with so many of those that were."""
    model: str | None = None
    """Only of this model's pool."""


def main(config: Annotated[EventsConfig, FLAT] = EventsConfig()) -> None:
    """Print events."""
    try:
        asyncio.run(_show(config))
    except BrokenPipeError:
        sys.stderr.close()


async def _show(config: EventsConfig) -> None:
    console = Console() if sys.stdout.isatty() else None
    async for event in _events(config):
        if console is not None:
            console.print(event_line(event), highlight=False, markup=False, soft_wrap=True)
        else:
            sys.stdout.write(json.dumps(event_facts(event)) + "\n")
            sys.stdout.flush()


async def _events(config: EventsConfig) -> AsyncIterator[PoolEvent]:
    """The last ones, then, if that is wanted, those that come, until cancelled."""
    async with existing_cluster(config, _NAME) as cluster:
        subjects = cluster.subjects
        subject = subjects.event("*" if config.model is None else pool_slug(config.model))
        js, stream = cluster.js.context(), subjects.events_stream
        info = await js.stream_info(stream, subjects_filter=subject)
        num_stored = sum((info.state.subjects or {}).values())
        num_left = min(num_stored, config.last)
        subscription = await js.subscribe(
            subject,
            stream=stream,
            ordered_consumer=True,
            config=ConsumerConfig(deliver_policy=DeliverPolicy.ALL),
        )
        num_skipped = num_stored - num_left
        while num_stored > 0 or config.follow:
            try:
                message = await subscription.next_msg(_WAIT_S)
            except NatsTimeoutError:
                if config.follow:
                    continue
                return
            num_stored -= 1
            num_skipped -= 1
            if num_skipped >= 0:
                continue
            try:
                yield decode(PoolEvent, message.data)  # type: ignore[arg-type]
            except ProtocolError as exc:
                sys.stderr.write(f"{_NAME}: {exc}\n")


def event_facts(event: PoolEvent) -> dict[str, Any]:
    """The event for a program."""
    kind = "worker" if isinstance(event, WorkerEvent) else "scale"
    return {"event": kind} | msgspec.structs.asdict(event)


def event_line(event: PoolEvent) -> str:
    """The event for a person."""
    moment = datetime.datetime.fromtimestamp(event.at).astimezone()
    head = f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03d}  {event.model}"
    match event:
        case WorkerEvent():
            detail = f" ({event.detail})" if event.detail else ""
            return f"{head}  {event.worker} on {event.host} is {event.state}{detail}"
        case ScaleEvent():
            kind = "" if event.role == "both" else f"{event.role} "
            return (
                f"{head}  {kind}workers {event.num_workers} to {event.num_wanted}: {event.reason}, "
                f"{event.need:g} needed; {event.num_waiting} requests wait, the oldest for "
                f"{event.oldest_wait_s:.1f} s, {event.num_running} run"
            )


PROGRAM = Program(name=_NAME, summary=_SUMMARY, main=main)

if __name__ == "__main__":
    PROGRAM.run()
