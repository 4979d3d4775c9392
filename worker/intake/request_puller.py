"""Pulls requests from the queue: never more than there is room for, urgent classes first.

A lane that may hold something is *asked*: its pull is answered at once. Lanes that hold nothing are
*watched*: a few requests are delivered as soon as they come, of a lane of the background one. So an
idle worker waits for all lanes, asks for nothing, and binds no room to any of them.

Raw pull requests with a callback: `fetch` waits for the whole batch, an iterator costs four times
as much.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from shared.broker.named_subjects import NamedSubjects
from shared.event_wait import wait_event
from shared.nats_client.prompt_client import prompt
from shared.subjects import JOB_CLASSES, LANES, Lane, Subjects
from shared.telemetry.log import get_logger
from worker.held.delivery import Delivery

_EXPIRES_S = 10.0
_HEARTBEAT_S = 2.0
_BACKGROUND_EXPIRES_S = 30.0
_BACKGROUND_HEARTBEAT_S = 5.0
_SILENT_BEATS = 2.5  # a watch without a heartbeat for so many is forgotten
_ANSWER_S = 1.0  # a pull that is not answered in this time is forgotten
_TICK_S = 0.25
_BACKGROUND_IDLE_S = 0.1  # the urgent class has had nothing this long before others are asked
# How long a lane counts as empty that was found so, and is not watched, as there is no room.
_EMPTY_S = {job_class: 0.02 if job_class == JOB_CLASSES[0] else 0.5 for job_class in JOB_CLASSES}
# What a watch may bring: with room for many requests it is not renewed for each of them.
_WATCHED_SHARE = 16
_MAX_WATCHED = 8
_DRAIN_S = 1.0

# Requests that each lane gives while all have some: the lowest is served first, none starves.
LANE_WEIGHTS = (8, 4, 1)

log = get_logger(__name__)


class LaneTurns:
    """Whose turn it is among the lanes of a class.

    Start-time fair queueing: a lane's turn comes when its start is the earliest.
    Taking from a lane moves its start by 1 / weight. Who has nothing saves nothing up: a lane that
    comes back starts where those are that were busy meanwhile.
    """

    def __init__(self, weights: tuple[int, ...] = LANE_WEIGHTS) -> None:
        self._weights = weights
        self._starts = [0.0] * len(weights)
        self._now = 0.0  # start of the latest request taken

    def took(self, level: int) -> None:
        """A request has come from this lane."""
        self._now = max(self._now, self._starts[level])
        self._starts[level] = self._now + 1 / self._weights[level]

    def share(self, num_requests: int, levels: Collection[int]) -> dict[int, int]:
        """How many of the next requests are to come from each of these lanes."""
        if len(levels) == 1 and num_requests:
            return dict.fromkeys(levels, num_requests)
        starts = {level: max(self._starts[level], self._now) for level in sorted(levels)}
        counts = dict.fromkeys(starts, 0)
        for _ in range(num_requests):
            level = min(starts, key=starts.__getitem__)  # of equal ones the lowest
            counts[level] += 1
            starts[level] += 1 / self._weights[level]
        return {level: count for level, count in counts.items() if count}


@dataclass(slots=True)
class _Pull:
    """A pull request that the server still holds."""

    pull_id: int
    num_open: int  # messages it may still deliver
    is_watch: bool
    silence_s: float  # after which it is forgotten
    heard_at: float


@dataclass(slots=True)
class _LaneState:
    """What is known of a lane; it has one pull at most."""

    lane: Lane
    pull: _Pull | None = None
    empty_at: float = float("-inf")  # it was found empty
    barred_until: float = 0.0  # the server could not say: nothing is asked before

    def is_empty(self, now: float) -> bool:
        """Whether nothing can be in it that has waited for more than a moment."""
        if now < self.barred_until or (self.pull is not None and self.pull.is_watch):
            return True
        return self.pull is None and now - self.empty_at < _EMPTY_S[self.lane.job_class]

    @property
    def is_asked(self) -> bool:
        return self.pull is not None and not self.pull.is_watch

    def forget(self) -> None:
        """Nothing is known any more."""
        self.pull, self.empty_at, self.barred_until = None, float("-inf"), 0.0


class RequestPuller:
    """Asks for as many requests as `num_credits()` says, minus those that are asked for already.

    The watches are not counted: when there are fewer credits than lanes, or none any more, they may
    bring a few requests too many, a sixteenth of the room a lane (one of the background), which are
    given back by whoever hears of them.
    """

    def __init__(
        self,
        nc: Client,
        subjects: Subjects,
        pool: str,
        num_credits: Callable[[], int],
        on_delivery: Callable[[Delivery], None],
    ) -> None:
        self._nc = nc
        self._subjects = subjects
        self._named = NamedSubjects(subjects)
        self._pool = pool
        self._num_credits = num_credits
        self._on_delivery = on_delivery
        self._inbox = ""
        self._lanes = {lane: _LaneState(lane) for lane in LANES}
        self._classes = [
            [state for lane, state in self._lanes.items() if lane.job_class == job_class]
            for job_class in JOB_CLASSES
        ]
        self._turns = {job_class: LaneTurns() for job_class in JOB_CLASSES}
        self._pull_ids = itertools.count(1)
        self._wake = asyncio.Event()
        self._last_urgent_at = 0.0  # the last delivery of the urgent class
        self.is_starved = False  # there were no credits, although slots may be free

    def wake(self) -> None:
        """Credits may have grown."""
        self._wake.set()

    def reset(self) -> None:
        """After a reconnect: the server has forgotten our pulls."""
        for state in self._lanes.values():
            state.forget()
        self._wake.set()

    async def run(self) -> None:
        """Pull until cancelled. What is delivered afterwards still reaches `on_delivery`."""
        self.reset()
        self._inbox = self._nc.new_inbox()  # the server forgets the pulls of the last run
        subscription = await self._nc.subscribe(f"{self._inbox}.*", cb=self._on_message)
        try:
            while True:
                self._wake.clear()
                self._forget_dead_pulls()
                await self._maybe_pull()
                await wait_event(self._wake, self._wait_s)
        finally:
            await self._drain(subscription)

    @property
    def num_asked(self) -> int:
        """Requests that pulls may bring, without the watches."""
        pulls = (state.pull for state in self._lanes.values())
        return sum(pull.num_open for pull in pulls if pull is not None and not pull.is_watch)

    @property
    def num_watched(self) -> int:
        """Lanes that are watched."""
        return sum(state.pull is not None and state.pull.is_watch for state in self._lanes.values())

    @property
    def _wait_s(self) -> float:
        """Until the next look; the background is asked as soon as the urgent class had its time."""
        now = time.monotonic()
        left_s = _BACKGROUND_IDLE_S - (now - self._last_urgent_at)
        if left_s > 0:
            return min(left_s, _TICK_S)
        pulls = [state.pull for state in self._lanes.values() if state.pull is not None]
        if len(pulls) < len(self._lanes):
            return _TICK_S
        return max(_TICK_S, min(pull.heard_at + pull.silence_s - now for pull in pulls))

    async def _maybe_pull(self) -> None:
        """A class is asked when the ones before it have nothing."""
        num_credits = self._num_credits()
        self.is_starved = num_credits == 0
        num_free = num_credits - self.num_asked
        if num_free <= 0:
            return
        now = time.monotonic()
        urgent, *others = self._classes
        if not await self._has_nothing(urgent, num_free, now):
            return
        for state in urgent:
            if state.pull is None and now >= state.barred_until:
                await self._watch(state, num_free)
        if now - self._last_urgent_at < _BACKGROUND_IDLE_S:
            return
        for states in others:
            if not await self._has_nothing(states, num_free, now):
                return
            for state in states:
                if state.pull is None and now >= state.barred_until:
                    await self._watch_background(state)

    async def _has_nothing(self, states: Sequence[_LaneState], num_free: int, now: float) -> bool:
        """Whether all lanes of a class are empty; if not, they are asked for what is free."""
        if all(state.is_empty(now) for state in states):
            return True
        levels = {
            state.lane.level: state
            for state in states
            if not state.is_empty(now) and not state.is_asked
        }
        if levels:
            turns = self._turns[states[0].lane.job_class]
            for level, count in turns.share(num_free, levels).items():
                await self._pull(levels[level], count, {"no_wait": True})
        return False

    async def _watch(self, state: _LaneState, num_free: int) -> None:
        batch = min(_MAX_WATCHED, max(1, num_free // _WATCHED_SHARE))
        await self._open_watch(state, batch, _EXPIRES_S, _HEARTBEAT_S)

    async def _watch_background(self, state: _LaneState) -> None:
        """What it brings shows that there is something: then the lane is asked."""
        await self._open_watch(state, 1, _BACKGROUND_EXPIRES_S, _BACKGROUND_HEARTBEAT_S)

    async def _open_watch(
        self, state: _LaneState, batch: int, expires_s: float, heartbeat_s: float
    ) -> None:
        options = {"expires": int(expires_s * 1e9), "idle_heartbeat": int(heartbeat_s * 1e9)}
        await self._pull(state, batch, options, watch_silence_s=_SILENT_BEATS * heartbeat_s)

    async def _pull(
        self,
        state: _LaneState,
        batch: int,
        options: Mapping[str, object],
        *,
        watch_silence_s: float | None = None,
    ) -> None:
        """`watch_silence_s`: of a watch; None: it is answered at once."""
        pull_id = next(self._pull_ids)
        is_watch = watch_silence_s is not None
        silence_s = _ANSWER_S if watch_silence_s is None else watch_silence_s
        state.pull = _Pull(pull_id, batch, is_watch, silence_s, time.monotonic())
        consumer = self._subjects.consumer(self._pool, state.lane.token)
        api, stream = self._subjects.api_prefix, self._subjects.requests_stream
        subject = f"{api}CONSUMER.MSG.NEXT.{stream}.{consumer}"
        payload = msgspec.json.encode({"batch": batch, **options})
        try:
            await self._nc.publish(
                subject, payload, reply=f"{self._inbox}.{state.lane.token}/{pull_id}"
            )
        except NatsError as exc:
            state.forget()
            state.barred_until = time.monotonic() + _TICK_S
            log.warning("pull_failed", error=repr(exc))

    @prompt
    async def _on_message(self, message: Msg) -> None:
        if self._named.is_ack_subject(message.reply):
            delivery = Delivery.from_msg(message)
            self._count(delivery)
            self._on_delivery(delivery)
        else:
            self._on_status(message.subject.rsplit(".", 1)[1], message.headers or {})

    def _count(self, delivery: Delivery) -> None:
        """A delivery bears the request's subject, not the pull's: its lane's only pull gave it."""
        now = time.monotonic()
        lane, state = delivery.lane, self._lanes[delivery.lane]
        if lane.job_class == JOB_CLASSES[0]:
            self._last_urgent_at = now
        self._turns[lane.job_class].took(lane.level)
        # What was delivered before may come in numbers, and is not pending.
        is_last = not delivery.num_pending and delivery.num_delivered == 1
        state.empty_at = now if is_last else float("-inf")
        if state.pull is not None:
            state.pull.heard_at = now
            state.pull.num_open -= 1
            if state.pull.num_open == 0:
                state.pull = None
                self._wake.set()

    def _on_status(self, pull_name: str, headers: dict[str, str]) -> None:
        token, _, pull_id = pull_name.partition("/")
        state = self._lanes[Lane.parse(token)]
        if state.pull is None or state.pull.pull_id != int(pull_id):
            return
        now = state.pull.heard_at = time.monotonic()
        status = headers.get("Status")
        if status == "100":  # a heartbeat; anything else ends the pull
            return
        state.pull = None
        if status in ("404", "408"):
            state.empty_at = now
            self._wake.set()
        else:  # the next tick is soon enough to try again
            state.barred_until = now + _TICK_S
            log.warning("pull_ended", status=status, description=headers.get("Description"))

    def _forget_dead_pulls(self) -> None:
        """Pulls whose end was never told: expired, or without heartbeats."""
        now = time.monotonic()
        for state in self._lanes.values():
            pull = state.pull
            if pull is not None and now - pull.heard_at > pull.silence_s:
                state.forget()

    async def _drain(self, subscription: Subscription) -> None:
        """What is on its way still arrives, and is given back."""
        with contextlib.suppress(NatsError, TimeoutError):
            if not self._nc.is_connected:
                await subscription.unsubscribe()
                return
            async with asyncio.timeout(_DRAIN_S):  # the broker may be frozen
                await subscription.drain()  # type: ignore[no-untyped-call]
