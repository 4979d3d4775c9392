"""`jetflock migrate`: moves a running service to other streams."""

# No `from __future__ import annotations` here: cyclopts reads the types of the fields.

import asyncio
import dataclasses
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import nats.errors

from jetflock.running.existing_cluster import existing_cluster
from jetflock.running.running_service import ServiceConfig
from jetflock.stream_move import StreamMove
from shared.broker.jetstream import JetStream
from shared.broker.settling import once_settled
from shared.cli.program import Program
from shared.cluster import Cluster, open_cluster
from shared.config import FLAT, ClusterConfig
from shared.errors import BrokerError, ConfigError
from shared.storage.streams import DEAD_MARGIN_S, ERR_STREAM_NOT_FOUND
from shared.subjects import Subjects
from shared.telemetry.log import setup_logging

_NAME = "jetflock migrate"
_SUMMARY = """\
Move a running service to streams with another prefix: with other partitions or replicas.

Frontends and detokenizers serve both sides from then on; workers end what the old queue holds, then
go over. Nothing is lost, and no client needs to notice. Killed anywhere, it is run again.
Both sets of streams need their room on the servers. --delete-old removes the old ones later, when
nothing is left there."""
_REPORT_S = 5.0
_LOOK_S = 0.5
_NS = 1_000_000_000
_LOG_MARGIN_S = 60.0  # of `ClusterConfig.token_retention_s`


@dataclass(frozen=True, kw_only=True)
class MigrateConfig(ServiceConfig):
    """Flags of `jetflock migrate`."""

    to_prefix: str = ""
    """First token of the new streams' names; what is not said of them is as with the old ones."""
    replicas: int = 0
    """Copies of each new stream in a NATS cluster; 0 is as many as of the old ones."""
    delete_old: bool = False
    """Remove the old streams of a service that has moved; refused while something is left."""
    wait: bool = True
    """Wait until the old queue is empty; else leave once it is closed."""
    timeout_s: float = 60.0
    """Time for roles to open the new streams, or to leave the old ones, and for servers to choose
    leaders meanwhile; workers take their own."""


def main(config: Annotated[MigrateConfig, FLAT] = MigrateConfig()) -> None:
    """Move it."""
    setup_logging("migrate", config.log_level, config.log_format)
    if not config.to_prefix:
        raise ConfigError("to_prefix is '', must name the new streams: give --to-prefix")
    if config.to_prefix == config.prefix:
        raise ConfigError(f"to_prefix is {config.to_prefix!r}, which is the old prefix, too")
    try:
        asyncio.run(_migrate(config))
    except (BrokerError, nats.errors.Error) as exc:
        raise ConfigError(f"{config.nats_url} refused: {exc}; run it again to go on") from exc


async def _migrate(config: MigrateConfig) -> None:
    async with existing_cluster(config, _NAME) as old:
        if config.delete_old:
            await _delete(old, config)
            return
        wanted = await once_settled(
            lambda: new_streams_config(old.js, old.subjects, old.config, config.to_prefix),
            config.timeout_s,
        )
        async with _new_streams(wanted) as new:
            move = StreamMove(old, new)
            await once_settled(move.prepare, config.timeout_s)
            await once_settled(move.announce, config.timeout_s)
            _say(f"the streams with prefix {config.to_prefix!r} are there, and announced")
            await move.close(config.timeout_s)
            _say("the old queue is closed: new requests go to the new one")
            if config.wait:
                await _wait_until_empty(move, config.timeout_s)


@asynccontextmanager
async def _new_streams(wanted: ClusterConfig) -> AsyncIterator[Cluster]:
    """Opens them at the lowest feature level, until the old one's is copied. Raises ConfigError."""
    async with AsyncExitStack() as stack:
        try:
            made = open_cluster(wanted, "migrate", first_level=1)
            cluster = await stack.enter_async_context(made)
        except ConfigError as exc:
            raise ConfigError(
                f"the new streams: {exc}. The old ones keep their room until --delete-old"
            ) from exc
        yield cluster


async def _delete(old: Cluster, config: MigrateConfig) -> None:
    there = dataclasses.replace(config, prefix=config.to_prefix, nats_url=old.config.nats_url)
    async with existing_cluster(there, _NAME) as new:
        await StreamMove(old, new).delete_old(config.timeout_s)
    _say(f"the streams with prefix {config.prefix!r} are gone")


async def _wait_until_empty(move: StreamMove, timeout_s: float) -> None:
    """Returns when the old queue is; `timeout_s` bounds each look at it alone."""
    reported_at = float("-inf")
    while num_queued := await once_settled(move.queued, timeout_s):
        if time.monotonic() - reported_at >= _REPORT_S:
            reported_at = time.monotonic()
            _say(f"{num_queued} requests wait or run in the old queue")
        await asyncio.sleep(_LOOK_S)
    _say("the old queue is empty: give --prefix to all roles when you start them next")


def _say(sentence: str) -> None:
    sys.stdout.write(sentence + "\n")
    sys.stdout.flush()


PROGRAM = Program(
    name=_NAME,
    summary=_SUMMARY,
    main=main,
    first=("nats_url", "prefix", "num_partitions", "replicas", "to_prefix", "delete_old"),
)

if __name__ == "__main__":
    PROGRAM.run()


async def new_streams_config(
    js: JetStream, old: Subjects, config: ClusterConfig, prefix: str
) -> ClusterConfig:
    """What an operator has given wins; everything else is as it is. Raises BrokerError."""
    requests = await _stream(js, old.requests_stream)
    tokens = await _stream(js, old.tokens_stream)
    results = await _stream(js, old.results_stream)
    responses = await _stream(js, old.responses_stream)
    batch = await _stream(js, old.batch_stream)
    dead = await _stream(js, old.dead_stream)
    objects = await _stream(js, f"OBJ_{old.objects_bucket}")
    keys = await _stream(js, f"KV_{old.key_buckets[0]}")
    resume_window_s = _age_s(results)
    as_it_is: dict[str, Any] = {
        "num_partitions": old.num_partitions,
        "replicas": requests["num_replicas"],
        "queue_max_msgs": requests["max_msgs"],
        "queue_max_bytes": requests["max_bytes"],
        "log_max_bytes": tokens["max_bytes"],
        "results_max_bytes": results["max_bytes"],
        "files_max_bytes": batch["max_bytes"],
        "files_ttl_s": _age_s(batch),
        "resume_window_s": resume_window_s,
        "max_deadline_s": _age_s(tokens) - resume_window_s - _LOG_MARGIN_S,
        "response_ttl_s": _age_s(responses),
        "response_store_bytes": responses["max_bytes"],
        "dead_max_bytes": dead["max_bytes"],
        "dead_ttl_s": _age_s(dead) - DEAD_MARGIN_S,
        "objects_max_bytes": objects["max_bytes"],
        "keys_max_bytes": keys["max_bytes"],
        **await _bills(js, old.bills_stream),
    }
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    kept = {name: value for name, value in as_it_is.items() if _is_default(config, name, defaults)}
    return dataclasses.replace(config, prefix=prefix, **kept)


async def _bills(js: JetStream, name: str) -> dict[str, Any]:
    """The bills of the old side, where any are kept. Raises BrokerError."""
    try:
        bills = await _stream(js, name)
    except BrokerError as exc:
        if exc.err_code != ERR_STREAM_NOT_FOUND:
            raise
        return {}
    return {"bills_ttl_s": _age_s(bills), "bills_max_bytes": bills["max_bytes"]}


def _is_default(config: ClusterConfig, name: str, defaults: dict[str, Any]) -> bool:
    return bool(getattr(config, name) == defaults[name])


async def _stream(js: JetStream, name: str) -> dict[str, Any]:
    found: dict[str, Any] = (await js.api(f"STREAM.INFO.{name}"))["config"]
    return found


def _age_s(stream: dict[str, Any]) -> float:
    return float(stream["max_age"] / _NS)
