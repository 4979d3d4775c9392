"""Moves a running service to other streams: every step may be the last one, and is done again.

First the new streams are made and told of; every frontend and detokenizer opens them beside the old
ones. Then the old queue is closed. From that moment, which the broker decides, new requests go to
the new side; what was accepted before ends on the old one.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from shared.broker.settling import once_settled
from shared.catalog.adapter_catalog import adapter_object
from shared.catalog.model_catalog import ModelCatalog
from shared.cluster import Cluster
from shared.errors import BrokerError, CasConflict, ConfigError
from shared.liveness.living_levels import LivingLevel, living_levels
from shared.protocol.model_cards import ModelCard
from shared.protocol.role_cards import SUPERVISOR, MoveRecord
from shared.service.feature_level import StoredLevel
from shared.service.move import MoveRecords, close_queue, is_queue_closed, servers_behind_queue
from shared.service.usage_sums import UsageSums
from shared.storage.streams import ERR_STREAM_NOT_FOUND, ensure_consumers, stream_configs
from shared.telemetry.log import get_logger

_FOLLOWERS = ("frontend", "detok", SUPERVISOR)
_LOOK_S = 0.3
_MAX_NAMED = 5

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Left:
    """What is still there, and what becomes of it."""

    what: str
    count: int


class StreamMove:
    """Moves from the streams of one cluster to those of another, over the same servers."""

    def __init__(self, old: Cluster, new: Cluster) -> None:
        self._old = old
        self._new = new
        self._old_records = MoveRecords(old.js, old.subjects.prefix)
        self._new_records = MoveRecords(new.js, new.subjects.prefix)

    async def prepare(self) -> None:
        """The new streams know whence they are; what roles need to start is there.

        Raises ConfigError where they are in use already, or an earlier move is not over, or
        BrokerError.
        """
        earlier = (await self._old_records.moved_from()).record
        if earlier is not None:
            raise ConfigError(
                f"prefix is {self._old.subjects.prefix!r}, which the service has moved to from "
                f"{earlier.prefix!r}: end that first, with --prefix {earlier.prefix} --to-prefix "
                f"{self._old.subjects.prefix} --delete-old"
            )
        record = (await self._new_records.moved_from()).record
        if record is None:
            await self._refuse_used()
            try:
                await self._new_records.put_moved_from(MoveRecord(self._old.subjects.prefix))
            except CasConflict:
                record = (await self._new_records.moved_from()).record
        if record is not None and record.prefix != self._old.subjects.prefix:
            raise ConfigError(
                f"to_prefix is {self._new.subjects.prefix!r}, to which the service of prefix "
                f"{record.prefix!r} moves: use another"
            )
        await self._copy()

    async def announce(self) -> None:
        """Announces it by compare-and-set.

        Raises ConfigError when it moves elsewhere, or BrokerError.
        """
        stored = await self._old_records.moved_to()
        target = self._new.subjects.prefix
        if stored.record is None:
            try:
                await self._old_records.put_moved_to(MoveRecord(target), stored.revision)
            except CasConflict:
                stored = await self._old_records.moved_to()
        if stored.record is not None and stored.record.prefix != target:
            raise ConfigError(
                f"to_prefix is {target!r}, but the service already moves to "
                f"{stored.record.prefix!r}: give that"
            )

    async def close(self, timeout_s: float) -> None:
        """The queue, once all frontends, detokenizers and supervisors have the new streams open,
        and all servers that hold it keep up. Waits through moments without a leader.

        Raises ConfigError, with nothing closed, when some do not; or BrokerError.
        """
        deadline = time.monotonic() + timeout_s
        await once_settled(lambda: self._close(timeout_s, deadline), timeout_s)

    async def _close(self, timeout_s: float, deadline: float) -> None:
        if await is_queue_closed(self._old.js, self._old.subjects):
            return
        while behind := await self._behind():
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"{len(behind)} roles have not opened the new streams in {timeout_s:g} s: "
                    f"{_named(behind)}; are they of an older version, "
                    "without rights there, or not started again since an earlier move? "
                    "Nothing has moved: mend it and run this again"
                )
            await asyncio.sleep(_LOOK_S)
        await self._copy()  # what has changed since
        await self._until_all_hear(deadline)
        while not await is_queue_closed(self._old.js, self._old.subjects):
            await close_queue(self._old.js, self._old.subjects)

    async def _until_all_hear(self, deadline: float) -> None:
        """Should a server lead the queue that has not heard that it is closed, it would take more.

        Raises ConfigError or BrokerError.
        """
        while behind := await servers_behind_queue(self._old.js, self._old.subjects):
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"nats-server {', '.join(behind)} does not keep up with stream "
                    f"{self._old.subjects.requests_stream}: start it, and run this again. Nothing "
                    "has moved"
                )
            await asyncio.sleep(_LOOK_S)

    async def queued(self) -> int:
        """Requests that the old queue holds, waiting and running. Raises BrokerError."""
        return await self._count(self._old.subjects.requests_stream)

    async def left(self) -> list[Left]:
        """What somebody may still ask for on the old side. Raises BrokerError."""
        names = self._old.subjects
        marks = await self._old.bucket(names.batches_bucket).entries("active.")
        counts = [
            Left("queued or running requests", await self.queued()),
            Left("unfinished batches", len(marks)),
            Left("results, gone after --resume-window-s", await self._count(names.results_stream)),
            Left("responses, after --response-ttl-s", await self._count(names.responses_stream)),
            Left("files, after --files-ttl-s", await self._count(f"KV_{names.files_bucket}")),
            Left("batches, after --files-ttl-s", await self._count(f"KV_{names.batches_bucket}")),
            Left("dead requests: jetflock dead drop", await self._count(names.dead_stream)),
        ]
        return [each for each in counts if each.count]

    async def delete_old(self, timeout_s: float) -> None:
        """The streams, once every role has let go of them; the record stays, for who comes late.
        Waits through moments without a leader.

        Raises ConfigError when something is left, or BrokerError.
        """
        deadline = time.monotonic() + timeout_s
        await once_settled(lambda: self._delete_old(deadline), timeout_s)

    async def _delete_old(self, deadline: float) -> None:
        stored = await self._old_records.moved_to()
        if stored.record is None or stored.record.prefix != self._new.subjects.prefix:
            raise ConfigError(
                f"the service of prefix {self._old.subjects.prefix!r} has not moved to "
                f"{self._new.subjects.prefix!r}: nothing was deleted"
            )
        if not stored.record.is_over:
            await self._check_nothing_left()
            await self._copy_usage()
            record = MoveRecord(stored.record.prefix, is_over=True)
            await self._old_records.put_moved_to(record, stored.revision)
        while roles := await living_levels(self._old):
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"{len(roles)} roles still use prefix {self._old.subjects.prefix!r}: "
                    f"{_named(roles)}; stop them, and run this again"
                )
            await asyncio.sleep(_LOOK_S)
        await self._new_records.forget_moved_from()
        for name in self._streams_to_delete():
            try:
                await self._old.js.api(f"STREAM.DELETE.{name}")
            except BrokerError as exc:
                if exc.err_code != ERR_STREAM_NOT_FOUND:
                    raise

    async def _check_nothing_left(self) -> None:
        if not await is_queue_closed(self._old.js, self._old.subjects):
            raise ConfigError("the old queue is still open: nothing was deleted")
        roles = [role for role in await living_levels(self._old) if role.role not in _FOLLOWERS]
        if roles:
            raise ConfigError(
                f"{len(roles)} roles still use prefix {self._old.subjects.prefix!r}: "
                f"{_named(roles)}; start them with the new one. Nothing was deleted"
            )
        if left := await self.left():
            told = "; ".join(f"{each.count} {each.what}" for each in left)
            raise ConfigError(
                f"something is left on prefix {self._old.subjects.prefix!r}: {told}. Nothing was "
                "deleted"
            )

    def _streams_to_delete(self) -> list[str]:
        """All but the record's, and the bills, which somebody may not have read. Those by which
        this is known to be a service come last: whoever is killed in between runs this again.
        """
        names = self._old.subjects
        last = [f"KV_{names.workers_bucket}", f"KV_{names.roles_bucket}", names.dead_stream]
        every = [stream["name"] for stream in stream_configs(self._old.config, names)]
        kept = (f"KV_{names.meta_bucket}", names.bills_stream, *last)
        return [
            *(name for name in every if name not in kept),
            f"KV_{names.usage_bucket}",  # there, whatever this command is told of bills
            *last,
        ]

    async def _refuse_used(self) -> None:
        prefix = self._new.subjects.prefix
        if (await self._new_records.moved_to()).record is not None:
            raise ConfigError(
                f"to_prefix is {prefix!r}, which is left for another: use a fresh one"
            )
        num_queued = await self._count(self._new.subjects.requests_stream)
        if num_queued or await living_levels(self._new):
            raise ConfigError(
                f"to_prefix is {prefix!r}, which another service uses: use a fresh one"
            )

    async def _behind(self) -> list[LivingLevel]:
        opened = {role.id for role in await living_levels(self._new)}
        return [
            role
            for role in await living_levels(self._old)
            if role.role in _FOLLOWERS and role.id not in opened
        ]

    async def _copy(self) -> None:
        """What every role needs of the old side, and what keys and tenants were told by."""
        await self._copy_level()
        await self._copy_secrets()
        for card in await ModelCatalog(self._old).cards():
            await self._copy_model(card)

    async def _copy_level(self) -> None:
        old, new = await self._old.level.read(), await self._new.level.read()
        if _rank(new) < _rank(old):
            try:
                await self._new.level.put(old.record, new.revision)
            except CasConflict:
                log.debug("level_raised_meanwhile")

    async def _copy_secrets(self) -> None:
        new = self._new.bucket(self._new.subjects.secrets_bucket)
        for entry in await self._old.bucket(self._old.subjects.secrets_bucket).entries():
            found = await new.get(entry.key)
            if found is None or found.value != entry.value:
                await new.put(entry.key, entry.value)

    async def _copy_model(self, card: ModelCard) -> None:
        """The card comes last: who reads it finds what it names."""
        old, new = ModelCatalog(self._old), ModelCatalog(self._new)
        names = [
            card.tokenizer_hash,
            *(adapter_object(card.pool, each.revision) for each in card.adapters),
        ]
        for name in names:
            await _copy_object(old, new, name)
        config, subjects = self._new.config, self._new.subjects
        await ensure_consumers(self._new.js, subjects, card.pool, config.ack_wait_s)
        cards = self._new.bucket(subjects.models_bucket)
        stored = await self._old.bucket(self._old.subjects.models_bucket).get(card.pool)
        found = await cards.get(card.pool)
        if stored is None or (found is not None and found.value == stored.value):
            return
        await cards.put(card.pool, stored.value)

    async def _copy_usage(self) -> None:
        """Sums of bills, which are asked for longer than the old side is kept."""
        sums = UsageSums(self._old.js, self._old.subjects)
        try:
            await sums.catch_up()
        except BrokerError as exc:
            if exc.err_code != ERR_STREAM_NOT_FOUND:
                raise
            return  # no bills were kept
        await sums.leave_to(self._new.bucket(self._new.subjects.usage_bucket))

    async def _count(self, stream: str) -> int:
        return int((await self._old.js.api(f"STREAM.INFO.{stream}"))["state"]["messages"])


async def _copy_object(old: ModelCatalog, new: ModelCatalog, name: str) -> None:
    if not await new.has_object(name):
        await new.put_object(name, await old.object(name))


def _rank(stored: StoredLevel) -> tuple[int, bool]:
    return stored.record.level, stored.record.is_held


def _named(roles: list[LivingLevel]) -> str:
    names = [f"{role.role} {role.id}" for role in roles[:_MAX_NAMED]]
    return ", ".join([*names, "..."] if len(roles) > _MAX_NAMED else names)
