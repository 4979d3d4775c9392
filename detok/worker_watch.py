"""Sees workers die, and hands their requests back to the queue at once."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

import nats.errors
from nats.aio.msg import Msg

from detok.decode_status import DecodeStatus
from detok.detok_stats import DetokStats
from detok.silent_peers import Patience, SilentPeers
from shared.broker.kv_bucket import KvEntry, readable
from shared.broker.named_subjects import NamedSubjects
from shared.cluster import Cluster
from shared.errors import BrokerError
from shared.event_wait import wait_event
from shared.liveness.heartbeat import Writability
from shared.nats_client.connection_end import end_subscription
from shared.protocol.role_cards import WorkerCard
from shared.storage.streams import HEARTBEAT_TTL_S
from shared.telemetry.log import get_logger

_POLL_S = 1.0
_POLL_IDLE_S = 4.0  # while no worker holds a request; the first claim makes it look at once
_TICK_S = 0.1
_MIN_TICK_S = 0.02  # while the moment is awaited at which one is to be asked for, or is dead
_POLLS_ABSENT = 2
_JITTER_S = 0.02
_MAX_REMEMBERED = 4096
_MAX_AT_ONCE = 32
_MAX_ID_BYTES = 128
_SILENCE_S = 0.15  # without a frame: some steps, or a long prefill
_ASK_EVERY_S = 0.1  # a worker that is there; then ever more seldom
_PATIENCE = Patience(pause_s=_ASK_EVERY_S, max_pause_s=2.0, absent_s=0.4)
_NO_WORKER = "nobody"  # a key that is never written: purging it is a write all the same
NAK = b"-NAK"

log = get_logger(__name__)


class Silence:
    """Since when workers that hold requests have written nothing."""

    def __init__(self) -> None:
        self._heard_at: dict[str, float] = {}  # the last frame, or claim

    def heard(self, worker: str, at: float) -> None:
        self._heard_at[worker] = max(at, self._heard_at.get(worker, 0.0))

    def keep(self, claimed_at: Mapping[str, float]) -> None:
        """These hold requests now, and no others; given with their newest claims."""
        self._heard_at = {
            worker: max(at, self._heard_at.get(worker, 0.0)) for worker, at in claimed_at.items()
        }

    def longer_than(self, silence_s: float) -> set[str]:
        """Workers that have written nothing for so long."""
        since = time.monotonic() - silence_s
        return {worker for worker, at in self._heard_at.items() if at < since}

    def next_s(self, silence_s: float) -> float:
        """Seconds until another one may have been silent for so long; infinite where none may."""
        since = time.monotonic() - silence_s
        lefts = (at - since for at in self._heard_at.values() if at >= since)
        return min(lefts, default=math.inf)


class Holders:
    """The requests of a partition by the worker that holds each, kept by change: to look for dead
    workers costs no more where they hold thousands.
    """

    def __init__(self) -> None:
        self._worker_of: dict[str, str] = {}  # by request id
        self._held: dict[str, dict[str, DecodeStatus]] = {}  # by worker, then by request id
        self.claimed_at: dict[str, float] = {}  # the newest claim of each worker in `_held`

    def note(self, status: DecodeStatus) -> None:
        """Its log has been read further: it may have another holder, or none."""
        worker = status.fold.writer
        if worker != self._worker_of.get(status.rid, ""):
            self.drop(status.rid)
            if worker:
                self._worker_of[status.rid] = worker
                self._held.setdefault(worker, {})[status.rid] = status
        if worker:
            self.claimed_at[worker] = max(self.claimed_at.get(worker, 0.0), status.claimed_at)

    def drop(self, rid: str) -> None:
        """It is gone."""
        worker = self._worker_of.pop(rid, None)
        if worker is None:
            return
        del self._held[worker][rid]
        if not self._held[worker]:
            del self._held[worker], self.claimed_at[worker]

    def held_by(self, worker: str) -> list[DecodeStatus]:
        return list(self._held[worker].values())


class WorkerWatch:
    """Knows which worker incarnations are dead: reported by a supervisor, or without heartbeat.

    A worker whose heartbeat comes back was only stopped; what it lost meanwhile stays lost to it
    (fencing), but new claims of it are let alone again. While heartbeats cannot be written, and
    until those who live have written theirs again, nobody is found dead.
    """

    def __init__(
        self, cluster: Cluster, stats: DetokStats, holders: Callable[[], Sequence[Holders]]
    ) -> None:
        self._cluster = cluster
        self._named = NamedSubjects(cluster.subjects)
        self._stats = stats
        self._holders = holders
        self._workers = cluster.bucket(cluster.subjects.workers_bucket)
        self._reported: OrderedDict[str, None] = OrderedDict()  # dead for certain
        self._absent_polls: dict[str, int] = {}  # of workers that hold requests
        self._silent: set[str] = set()  # dead by absence
        self._was_seen: set[str] = set()
        self.writability = Writability()
        self._keys: dict[str, str] = {}  # of the cards of workers that may be asked for
        self._silent_peers = SilentPeers(cluster, _PATIENCE)
        self._silence = Silence()
        self._num_reconnects = 0
        self._is_idle = False  # no worker held a request at the last look
        self._wake = asyncio.Event()
        self._at_once = asyncio.Semaphore(_MAX_AT_ONCE)

    def is_dead(self, worker: str) -> bool:
        return worker in self._reported or worker in self._silent

    def heard(self, worker: str) -> None:
        """A frame of it was read."""
        self._silence.heard(worker, time.monotonic())

    def note_claim(self, worker: str) -> None:
        """A claim of it was read."""
        if self._is_idle or self.is_dead(worker):
            self._wake.set()

    async def run(self) -> None:
        subscription = await self._cluster.nc.subscribe(
            self._cluster.subjects.worker_died, cb=self._on_worker_died
        )
        try:
            async with asyncio.TaskGroup() as questions:
                await self._watch(questions)
        finally:
            await end_subscription(subscription)

    async def _watch(self, questions: asyncio.TaskGroup) -> None:
        polled_at = float("-inf")
        while True:
            claimed_at = self._claimed_at()
            self._is_idle = not claimed_at
            next_poll = polled_at + (_POLL_IDLE_S if self._is_idle else _POLL_S)
            if time.monotonic() >= next_poll:
                await self._poll()
                polled_at = time.monotonic()
                continue
            self._silence.keep(claimed_at)
            await self._look_for_absent(questions)
            await self._hand_back_all()
            tick_s = _POLL_IDLE_S if self._is_idle else _TICK_S
            await self._wait(min(next_poll, time.monotonic() + tick_s), questions)

    async def _wait(self, until: float, questions: asyncio.TaskGroup) -> None:
        """Or until something is known of a dead worker; who falls silent meanwhile is asked for."""
        while (left_s := until - time.monotonic()) > 0:
            due_s = min(self._silence.next_s(_SILENCE_S), self._silent_peers.due_s)
            if await wait_event(self._wake, min(left_s, max(_MIN_TICK_S, due_s))):
                self._wake.clear()
                return
            if await self._look_for_absent(questions):
                return

    async def _on_worker_died(self, message: Msg) -> None:
        if len(message.data) > _MAX_ID_BYTES:
            log.warning("no_worker_id", num_bytes=len(message.data))
            return
        worker = message.data.decode(errors="replace")
        self._reported[worker] = None
        if len(self._reported) > _MAX_REMEMBERED:
            self._reported.popitem(last=False)
        self._wake.set()

    async def _poll(self) -> None:
        try:
            await self._workers.delete(_NO_WORKER)
            entries = await self._workers.entries()
        except BrokerError as exc:
            self.writability.note(is_written=False)
            log.warning("workers_unreachable", error=str(exc))
            return
        if not self.writability.is_steady:
            self._absent_polls.clear()
            return
        self._note_keys(entries)
        self._judge({_worker_of(entry) for entry in entries}, self._claimed_at())

    def _note_keys(self, entries: list[KvEntry]) -> None:
        """A worker of an earlier version answers no pings: its heartbeat shows that it lives."""
        new = [entry for entry in entries if _worker_of(entry) not in self._was_seen]
        listening = {card.worker for card in readable(WorkerCard, new) if card.has_presence}
        found = {_worker_of(entry): entry.key for entry in entries}
        self._keys = {w: key for w, key in found.items() if w in self._keys or w in listening}

    def _claimed_at(self) -> dict[str, float]:
        """The newest claim of each worker that holds a request."""
        claimed_at: dict[str, float] = {}
        for holders in self._holders():
            for worker, at in holders.claimed_at.items():
                claimed_at[worker] = max(claimed_at.get(worker, 0.0), at)
        return claimed_at

    async def _look_for_absent(self, questions: asyncio.TaskGroup) -> bool:
        """Whether there is one who writes nothing, and is not there: its card goes, so that nobody
        waits for it.
        """
        if self._cluster.nc.stats["reconnects"] != self._num_reconnects:
            self._num_reconnects = self._cluster.nc.stats["reconnects"]
            self.writability.note(is_written=False)
        if not self.writability.is_steady:
            self._silent_peers.forget()
            return False
        gone = await self._silent_peers.gone(self._silent_holders(), questions)
        for worker in gone:
            await self._remove_card(worker, self._keys[worker])
        return bool(gone)

    def _silent_holders(self) -> set[str]:
        """Those that may be asked for."""
        silent = self._silence.longer_than(_SILENCE_S)
        return {worker for worker in silent if worker in self._keys and not self.is_dead(worker)}

    async def _remove_card(self, worker: str, key: str) -> None:
        try:
            if (card := await self._workers.get(key)) is not None:
                await self._workers.delete(key, card.revision)
        except BrokerError as exc:
            log.warning("workers_unreachable", error=str(exc))
            return
        log.warning("worker_absent", worker=worker)
        self._silent.add(worker)

    def _judge(self, present: set[str], claimed_at: dict[str, float]) -> None:
        now = time.monotonic()
        self._was_seen = (self._was_seen & claimed_at.keys()) | present
        self._silent -= present
        self._absent_polls = {
            worker: self._absent_polls.get(worker, 0) + 1 for worker in claimed_at.keys() - present
        }
        for worker, num_polls in self._absent_polls.items():
            is_old = now - claimed_at[worker] > HEARTBEAT_TTL_S
            if num_polls >= _POLLS_ABSENT and (worker in self._was_seen or is_old):
                if not self.is_dead(worker):
                    log.warning("worker_dead", worker=worker)
                self._silent.add(worker)
        self._silent &= claimed_at.keys()

    async def _hand_back_all(self) -> None:
        orphans = [
            status
            for holders in self._holders()
            for worker in holders.claimed_at
            if self.is_dead(worker)
            for status in holders.held_by(worker)
            if status.nakked_epoch != status.fold.epoch
        ]
        await asyncio.gather(*(self._hand_back(status) for status in orphans))

    async def _hand_back(self, status: DecodeStatus) -> None:
        """Nak once, and only while this claim is the last word on the request."""
        claim, epoch = status.claim, status.fold.epoch
        assert claim is not None
        async with self._at_once:
            await asyncio.sleep(random.random() * _JITTER_S)
            try:
                held = await self._cluster.ownership.is_held_by(status.rid, claim.worker, epoch)
                if held and not self._named.is_ack_subject(claim.ack_subject):
                    log.error("no_ack_subject", rid=status.rid, subject=claim.ack_subject[:80])
                elif held:
                    await self._cluster.nc.publish(claim.ack_subject, NAK)
                    self._stats.naks += 1
            except (BrokerError, nats.errors.Error) as exc:
                log.warning("hand_back_failed", rid=status.rid, error=repr(exc))
                return  # the next poll tries again
            status.nakked_epoch = epoch


def _worker_of(card: KvEntry) -> str:
    """Behind its pool, in the card's key."""
    return card.key.partition(".")[2]
