"""Pulls requests from the queue: never more than there is room for, urgent classes first.

Raw pull requests with a callback: `fetch` waits for the whole batch, an iterator costs four times
as much (docs/nats.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from shared.event_wait import wait_event
from shared.log import get_logger
from shared.subjects import JOB_CLASSES, Subjects
from worker.delivery import Delivery

_EXPIRES_S = 10.0
_HEARTBEAT_S = 2.0
_TICK_S = 0.25
_BACKGROUND_IDLE_S = 0.1  # the urgent class has had nothing this long before others are asked
_DRAIN_S = 1.0

log = get_logger(__name__)


@dataclass(slots=True)
class _Pull:
    """A pull request that the server still holds."""

    job_class: str
    num_open: int  # messages it may still deliver
    heard_at: float


class RequestPuller:
    """Keeps as many pulls open as `num_credits()` allows, counting what open pulls may deliver."""

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
        self._pool = pool
        self._num_credits = num_credits
        self._on_delivery = on_delivery
        self._inbox = ""
        self._pulls: dict[int, _Pull] = {}
        self._pull_ids = itertools.count(1)
        self._wake = asyncio.Event()
        self._last_urgent_at = 0.0  # the last pull of the urgent class, or delivery from it
        self.is_starved = False  # there were no credits, although slots may be free

    def wake(self) -> None:
        """Credits may have grown."""
        self._wake.set()

    def reset(self) -> None:
        """After a reconnect: the server has forgotten our pulls."""
        self._pulls.clear()
        self._wake.set()

    async def run(self) -> None:
        """Pull until cancelled. What is delivered afterwards still reaches `on_delivery`."""
        self._pulls.clear()
        self._inbox = self._nc.new_inbox()  # the server forgets the pulls of the last run
        subscription = await self._nc.subscribe(f"{self._inbox}.*", cb=self._on_message)
        try:
            while True:
                self._wake.clear()
                self._forget_dead_pulls()
                await self._pull_urgent()
                await self._maybe_pull_background()
                await wait_event(self._wake, self._wait_s)
        finally:
            await self._drain(subscription)

    @property
    def _num_open(self) -> int:
        return sum(pull.num_open for pull in self._pulls.values())

    @property
    def _wait_s(self) -> float:
        """Until the next look; the background is asked as soon as the urgent class had its time."""
        left_s = _BACKGROUND_IDLE_S - (time.monotonic() - self._last_urgent_at)
        return min(left_s, _TICK_S) if left_s > 0 else _TICK_S

    async def _pull_urgent(self) -> None:
        num_credits = self._num_credits()
        self.is_starved = num_credits == 0
        num_missing = num_credits - self._num_open
        # Small top-ups wait until they are worth a message, unless nothing at all is open.
        if num_missing > 0 and (self._num_open == 0 or num_missing >= self._num_open):
            self._last_urgent_at = time.monotonic()
            await self._pull(
                JOB_CLASSES[0],
                num_missing,
                {"expires": int(_EXPIRES_S * 1e9), "idle_heartbeat": int(_HEARTBEAT_S * 1e9)},
            )

    async def _maybe_pull_background(self) -> None:
        """The other classes get what the urgent one has left unused for a moment.

        Its pull stays open meanwhile: for that moment more may come than there is room for, and
        whoever hears of the deliveries gives them back.
        """
        if time.monotonic() - self._last_urgent_at < _BACKGROUND_IDLE_S:
            return
        for job_class in JOB_CLASSES[1:]:
            if any(pull.job_class == job_class for pull in self._pulls.values()):
                continue
            num_credits = self._num_credits()
            if num_credits > 0:  # answered at once: it does not hold credits for long
                await self._pull(job_class, num_credits, {"no_wait": True})

    async def _pull(self, job_class: str, batch: int, options: dict[str, object]) -> None:
        pull_id = next(self._pull_ids)
        self._pulls[pull_id] = _Pull(job_class, batch, time.monotonic())
        consumer = self._subjects.consumer(self._pool, job_class)
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._subjects.requests_stream}.{consumer}"
        payload = msgspec.json.encode({"batch": batch, **options})
        try:
            await self._nc.publish(subject, payload, reply=f"{self._inbox}.{pull_id}")
        except NatsError as exc:
            del self._pulls[pull_id]
            log.warning("pull_failed", error=repr(exc))

    async def _on_message(self, message: Msg) -> None:
        if message.reply.startswith("$JS.ACK"):
            self._count_delivery(message.subject.rsplit(".", 1)[1])
            self._on_delivery(Delivery.from_msg(message))
        else:
            self._on_status(int(message.subject.rsplit(".", 1)[1]), message.headers or {})

    def _count_delivery(self, job_class: str) -> None:
        """A delivery bears the request's subject, not the pull's: the oldest pull gave it."""
        now = time.monotonic()
        if job_class == JOB_CLASSES[0]:
            self._last_urgent_at = now
        for pull_id, pull in self._pulls.items():
            if pull.job_class == job_class:
                pull.heard_at = now
                pull.num_open -= 1
                if pull.num_open == 0:
                    del self._pulls[pull_id]
                return

    def _on_status(self, pull_id: int, headers: dict[str, str]) -> None:
        pull = self._pulls.get(pull_id)
        if pull is None:
            return
        pull.heard_at = time.monotonic()
        status = headers.get("Status")
        if status == "100":  # a heartbeat; anything else ends the pull
            return
        del self._pulls[pull_id]
        if status not in ("404", "408"):  # the next tick is soon enough to try again
            log.warning("pull_ended", status=status, description=headers.get("Description"))
        elif pull.job_class == JOB_CLASSES[0]:
            self._wake.set()

    def _forget_dead_pulls(self) -> None:
        """Pulls whose end was never told: expired, or without heartbeats."""
        now = time.monotonic()
        for pull_id, pull in list(self._pulls.items()):
            is_urgent = pull.job_class == JOB_CLASSES[0]
            if now - pull.heard_at > (2.5 * _HEARTBEAT_S if is_urgent else 1.0):
                del self._pulls[pull_id]

    async def _drain(self, subscription: Subscription) -> None:
        """What is on its way still arrives, and is given back."""
        with contextlib.suppress(NatsError, TimeoutError):
            if not self._nc.is_connected:
                await subscription.unsubscribe()
                return
            async with asyncio.timeout(_DRAIN_S):  # the broker may be frozen
                await subscription.drain()  # type: ignore[no-untyped-call]
