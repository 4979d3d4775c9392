"""Garbage for every subject that a role reads."""

from __future__ import annotations

import contextlib
import random

import msgpack
import nats.errors

from shared.cluster import Cluster
from shared.errors import BrokerError
from shared.subjects import LANES, new_rid

_ODD_VALUES: tuple[object, ...] = (
    None, 7, [], {}, "text", b"\xff", {"v": 2}, {"v": 99}, {"v": "1"}, [1, 2, 3], {"kind": "claim"},
    {"v": 2, "rid": 5}, {"v": 2, "worker": None, "hashes": "x"}, {1: 2}, [[], [[]]],
    {"v": 2, "kind": "cancel", "rid": "../../x", "epoch": -1},
)  # fmt: skip


async def send_broken_messages(cluster: Cluster, pool: str, rng: random.Random) -> None:
    """Every subject gets every kind of garbage, where nothing true is overwritten."""
    subjects, rid = cluster.subjects, new_rid()
    own = [
        subjects.ownership(rid),
        subjects.tokens(rng.randrange(subjects.num_partitions), "worker-garbage"),
        *(subjects.request(pool, lane.token, "", new_rid()) for lane in LANES),
        subjects.done(new_rid()),
    ]
    heard = [
        subjects.control(pool), subjects.admin(pool), subjects.prefixes(pool),
        subjects.worker_died, *map(subjects.replay, range(subjects.num_partitions)),
        *await _incarnations(cluster, pool),
        "jetflock.chat.completions", "jetflock.completions", "jetflock.generate",
        "jetflock.embed", "jetflock.resume", "jetflock.abort", "jetflock.models",
    ]  # fmt: skip
    for subject in [*own, *heard]:
        for payload in _payloads(rng):
            with contextlib.suppress(nats.errors.Error):
                reply = _inbox(cluster, subject)
                await cluster.nc.publish(subject, payload, reply=reply)
    for bucket in (
        subjects.workers_bucket, subjects.roles_bucket, subjects.attached_bucket,
        subjects.idempotency_bucket, subjects.owners_bucket, subjects.models_bucket,
    ):  # fmt: skip
        for payload in _payloads(rng):
            with contextlib.suppress(BrokerError):
                await cluster.bucket(bucket).put(f"garbage.{rid}", payload)


def _inbox(cluster: Cluster, subject: str) -> str:
    """Callers of the service have inboxes of their own."""
    is_role = subject.startswith(f"{cluster.subjects.prefix}.")
    return cluster.nc.new_inbox() if is_role else f"_INBOX.{new_rid()}"


async def _incarnations(cluster: Cluster, pool: str) -> list[str]:
    """The inboxes of living workers and frontends."""
    subjects = cluster.subjects
    try:
        workers = await cluster.bucket(subjects.workers_bucket).entries()
        roles = await cluster.bucket(subjects.roles_bucket).entries()
    except BrokerError:
        return []
    offers = [subjects.offer(pool, entry.key.rsplit(".", 1)[1]) for entry in workers]
    offers += [subjects.admin_worker(pool, entry.key.rsplit(".", 1)[1]) for entry in workers]
    return offers + [subjects.reply(entry.key.rsplit(".", 1)[-1]) for entry in roles]


def _payloads(rng: random.Random) -> list[bytes]:
    whole = [msgpack.packb(value) for value in _ODD_VALUES]
    cut = [payload[: rng.randrange(len(payload))] for payload in whole if len(payload) > 1]
    return [b"", b"not msgpack", rng.randbytes(200), *whole, *cut]
