"""`jetflock dead`: the requests that were given up, to be looked at, queued again or forgotten."""

# No `from __future__ import annotations` here: cyclopts reads the types of the commands.

import asyncio
import datetime
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

import cyclopts
import msgspec

from jetflock.command_line.output import print_json, print_table
from jetflock.running.existing_cluster import existing_cluster
from jetflock.running.running_service import ServiceConfig
from shared.admin.dead_requests import DeadRequests, StoredDead
from shared.cli.program import Program
from shared.config import FLAT, ClusterConfig
from shared.errors import BrokerError, ConfigError
from shared.protocol.codec import decode
from shared.protocol.request import GenerateRequest
from shared.protocol.sealed_replies import unseal
from shared.protocol.token_ids import unpack_token_ids

_NAME = "jetflock dead"
_SUMMARY = """\
Requests that were given up, because workers crashed again and again while they ran them.

They stay until they are queued again or dropped, are older than --dead-ttl-s (30 days), or newer
ones need their room (--dead-max-bytes, 128 MiB)."""

_Config = Annotated[ServiceConfig, FLAT]
_AsJson = Annotated[bool, cyclopts.Parameter(name="--json", negative="")]
_Rids = Annotated[list[str], cyclopts.Parameter(negative="")]
_DEFAULTS = ServiceConfig()

_COLUMNS = ("request", "model", "queued at", "given up at", "crashes", "prompt tokens")


def list_dead(*, as_json: _AsJson = False, config: _Config = _DEFAULTS) -> None:
    """All of them, oldest first."""
    asyncio.run(_with_dead(config, lambda dead: _list(dead, as_json)))


def show_dead(rid: str, /, *, as_json: _AsJson = False, config: _Config = _DEFAULTS) -> None:
    """One of them: why, which workers died when, and how it was asked for.

    Of the prompt only --json tells more than its length.
    """
    asyncio.run(_with_dead(config, lambda dead: _show(dead, rid, as_json)))


def requeue_dead(rids: _Rids, /, *, as_json: _AsJson = False, config: _Config = _DEFAULTS) -> None:
    """Queue them again, each under a new id, which is printed behind the old one.

    Nobody waits for the result: read it with GET /v1/streams/NEW_ID and the API key of the first
    client, while it runs or as long as results are kept.
    """
    asyncio.run(_with_dead(config, lambda dead: _requeue(dead, rids, as_json)))


def drop_dead(rids: _Rids, /, *, config: _Config = _DEFAULTS) -> None:
    """Forget them."""
    asyncio.run(_with_dead(config, lambda dead: _drop(dead, rids)))


_COMMANDS: dict[str, Callable[..., None]] = {
    "list": list_dead,
    "show": show_dead,
    "requeue": requeue_dead,
    "drop": drop_dead,
}


async def _with_dead(
    config: ClusterConfig, work: Callable[[DeadRequests], Awaitable[None]]
) -> None:
    async with existing_cluster(config, _NAME) as cluster:
        try:
            await work(DeadRequests(cluster))
        except BrokerError as exc:
            raise ConfigError(
                f"{cluster.subjects.dead_stream} at {cluster.config.nats_url} cannot be used: {exc}"
            ) from exc


async def _list(dead: DeadRequests, as_json: bool) -> None:
    found = await dead.all()
    if as_json:
        print_json([_brief(stored) for stored in found])
        return
    rows = [
        [
            stored.dead.rid,
            str(_brief(stored)["model"]),
            _clock(stored.dead.queued_at),
            _clock(stored.dead.died_at),
            str(len(stored.dead.crashes)),
            str(_brief(stored)["num_prompt_tokens"]),
        ]
        for stored in found
    ]
    print_table(_COLUMNS, rows, "nothing is dead")


async def _show(dead: DeadRequests, rid: str, as_json: bool) -> None:
    [stored] = await _find(dead, [rid])
    if as_json:
        print_json(_whole(stored))
        return
    facts = _brief(stored) | _asked_for(_request(stored))
    print_table(("field", "value"), [[key, _text(value)] for key, value in facts.items()], "")
    sys.stdout.write("\n")
    rows = [
        [
            crash.worker,
            "engine" if crash.engine_only else "worker",
            "alone" if crash.was_alone else "beside others",
            _clock(crash.claimed_at),
            _clock(crash.noticed_at),
        ]
        for crash in stored.dead.crashes
    ]
    print_table(("worker", "what died", "it ran", "claimed at", "noticed at"), rows, "")


async def _requeue(dead: DeadRequests, rids: Sequence[str], as_json: bool) -> None:
    moved = {}
    for stored in await _find(dead, rids):
        moved[stored.dead.rid] = await dead.requeue(stored)
        if not as_json:
            sys.stdout.write(f"{stored.dead.rid} {moved[stored.dead.rid]}\n")
    if as_json:
        print_json(moved)


async def _drop(dead: DeadRequests, rids: Sequence[str]) -> None:
    for stored in await _find(dead, rids):
        await dead.drop(stored)


async def _find(dead: DeadRequests, rids: Sequence[str]) -> list[StoredDead]:
    """All of them, or an error before anything is done."""
    by_rid = {stored.dead.rid: stored for stored in await dead.all()}
    unknown = [rid for rid in rids if rid not in by_rid]
    if unknown:
        raise ConfigError(f"no dead request {', '.join(unknown)}; `{_NAME} list` names them")
    return [by_rid[rid] for rid in dict.fromkeys(rids)]


def _request(stored: StoredDead) -> GenerateRequest | None:
    return decode(GenerateRequest, stored.dead.request) if stored.dead.request else None


def _brief(stored: StoredDead) -> dict[str, Any]:
    request, dead = _request(stored), stored.dead
    return {
        "rid": dead.rid,
        "model": request.model if request else "",
        "pool": dead.pool,
        "class": dead.job_class,
        "reason": dead.reason,
        "queued_at": _iso(dead.queued_at),
        "died_at": _iso(dead.died_at),
        "num_crashes": len(dead.crashes),
        "num_prompt_tokens": request.reply.num_prompt_tokens if request else 0,
    }


def _whole(stored: StoredDead) -> dict[str, Any]:
    request = _request(stored)
    crashes = [
        msgspec.structs.asdict(crash)
        | {"claimed_at": _iso(crash.claimed_at), "noticed_at": _iso(crash.noticed_at)}
        for crash in stored.dead.crashes
    ]
    prompt_ids = unpack_token_ids(request.prompt_ids) if request and request.prompt_ids else None
    return (
        _brief(stored)
        | {"crashes": crashes}
        | _asked_for(request)
        | {"prompt_ids": prompt_ids, "prompt_object": stored.dead.prompt_object or None}
    )


def _asked_for(request: GenerateRequest | None) -> dict[str, Any]:
    if request is None:
        return {"request": "too large to be kept"}
    asked: dict[str, Any] = {
        "surface": unseal(request.reply).surface.value,
        "revision": request.revision,
        "deadline_s": request.deadline_s,
        "priority": request.priority,
        "sampling": msgspec.to_builtins(request.sampling),
        "stop": list(request.text.stop),
    }
    if request.adapter:
        asked["adapter"] = request.adapter
    if request.pooling is not None:
        asked["pooling"] = msgspec.to_builtins(request.pooling)
    return asked


def _iso(time_s: float) -> str:
    return datetime.datetime.fromtimestamp(time_s, datetime.UTC).isoformat(timespec="milliseconds")


def _clock(time_s: float) -> str:
    moment = datetime.datetime.fromtimestamp(time_s, datetime.UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S}Z"


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else str(value)


PROGRAM = Program(name=_NAME, summary=_SUMMARY, commands=_COMMANDS)

if __name__ == "__main__":
    PROGRAM.run()
