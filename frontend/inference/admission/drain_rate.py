"""How fast the queue is worked off: what a refused client is told to wait."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Sequence
from typing import NamedTuple

from shared.cluster import Cluster
from shared.errors import BrokerError
from shared.event_wait import LookPace
from shared.subjects import LANES, Lane
from shared.telemetry.log import get_logger

MAX_RETRY_AFTER_S = 120
_INTERVAL_S = 1.0
_IDLE_S = 6.0  # while nobody asks
_FRESH_S = 10.0
_WINDOW_S = 30.0
_SHARE = 0.1  # of the queue: what is to be free again for those who were refused meanwhile

log = get_logger(__name__)


class Sample(NamedTuple):
    """The queue at one moment."""

    at: float  # seconds of the event loop's clock
    num_messages: int  # requests that wait or run
    num_finished: int  # requests that left the queue since it was made


class DrainRate:
    """Samples of the last half minute."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque()

    def add(self, sample: Sample) -> None:
        """A later one than all before."""
        samples = self._samples
        samples.append(sample)
        while len(samples) > 2 and samples[1].at <= sample.at - _WINDOW_S:
            samples.popleft()

    @property
    def per_s(self) -> float:
        """Requests that left the queue in a second; 0 while nothing is known."""
        if len(self._samples) < 2:
            return 0.0
        first, last = self._samples[0], self._samples[-1]
        return (last.num_finished - first.num_finished) / (last.at - first.at)

    def retry_after_s(self, num_requests: int) -> int:
        """Until a tenth of the queue is free, and room for these: 1 to 120 s."""
        rate = self.per_s
        if rate <= 0:
            return MAX_RETRY_AFTER_S
        num_free = max(num_requests, _SHARE * self._samples[-1].num_messages)
        return max(1, min(MAX_RETRY_AFTER_S, round(num_free / rate)))

    def wait_s(self, num_requests: int, num_held: int) -> float:
        """Until so many of somebody's requests are over, if theirs end like all others."""
        rate = self.per_s
        if rate <= 0:
            return float(MAX_RETRY_AFTER_S)
        their_rate = rate * num_held / max(num_held, self._samples[-1].num_messages)
        return min(float(MAX_RETRY_AFTER_S), num_requests / their_rate)


class QueueWatch:
    """Looks at the queue every second, whatever the load, and however much is in it: of each model
    that was asked for, the server tells what its consumers have before them.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.drain = DrainRate()
        self._seen_at = float("-inf")
        self._usage = 0.0
        self._seen: Counter[tuple[str, str]] = Counter()  # messages by pool and class
        self._accepted: Counter[tuple[str, str]] = Counter()  # by us, and on their way there
        self._stored: Counter[tuple[str, str]] = Counter()  # by us, since we looked
        self._of_lane: dict[tuple[str, Lane], int] = {}  # messages, by pool
        self._pools: set[str] = set()  # that were asked for
        self._pace = LookPace(_INTERVAL_S, _IDLE_S)

    def num_queued(self, pool: str, job_class: str) -> int:
        """Requests that wait or run. What other frontends accept is seen within a second."""
        self._pace.use()
        if pool not in self._pools:
            self._pools.add(pool)
            self._pace.look_soon()
        return self.num_known(pool, job_class)

    def num_known(self, pool: str, job_class: str) -> int:
        """The same of any pool, also of one that nobody asked for: it is not looked at."""
        key = pool, job_class
        return self._seen[key] + self._accepted[key] + self._stored[key]

    def note_accepted(self, pool: str, job_class: str, num_requests: int) -> None:
        """Count them, until they are stored; below 0: they did not come after all."""
        self._accepted[pool, job_class] += num_requests

    def note_stored(self, pool: str, job_class: str, num_requests: int) -> None:
        """They are in the queue: count them until they are seen there."""
        self._accepted[pool, job_class] -= num_requests
        self._stored[pool, job_class] += num_requests

    @property
    def usage(self) -> float:
        """The part of the queue that is used, in messages or bytes."""
        self._pace.use()
        return self._usage

    @property
    def is_fresh(self) -> bool:
        """Whether the queue was there lately."""
        return asyncio.get_running_loop().time() - self._seen_at < _FRESH_S

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._look()
            await self._pace.wait()

    async def _look(self) -> None:
        stored = self._stored.copy()
        try:
            name = self._cluster.subjects.requests_stream
            info = await self._cluster.js.api(f"STREAM.INFO.{name}")
            is_empty = not info["state"]["messages"]  # then no consumer has any before it
            await self._count([] if is_empty else sorted(self._pools), stored)
        except BrokerError as exc:
            log.debug("queue_not_seen", error=str(exc))
            self._pace.note_failure()
            return
        state, config = info["state"], info["config"]
        self._usage = max(
            int(state[used]) / int(config[limit])
            for used, limit in (("messages", "max_msgs"), ("bytes", "max_bytes"))
        )
        # A message leaves this stream when its request is over, and in no other way.
        num_messages = int(state["messages"])
        num_finished = int(state["last_seq"]) - num_messages
        self._seen_at = asyncio.get_running_loop().time()
        self.drain.add(Sample(self._seen_at, num_messages, num_finished))

    async def _count(self, pools: Sequence[str], stored: Counter[tuple[str, str]]) -> None:
        """`stored` by us, before anything was looked at."""
        if not pools:
            self._of_lane.clear()
        lanes = [(pool, lane) for pool in pools for lane in LANES]
        await asyncio.gather(*(self._count_lane(pool, lane) for pool, lane in lanes))
        self._seen.clear()
        self._stored.subtract(stored)  # what comes meanwhile is counted twice, for a moment
        for (pool, lane), count in self._of_lane.items():
            self._seen[pool, lane.job_class] += count  # of a class's lanes together

    async def _count_lane(self, pool: str, lane: Lane) -> None:
        subjects = self._cluster.subjects
        name = f"{subjects.requests_stream}.{subjects.consumer(pool, lane.token)}"
        try:
            info = await self._cluster.js.api(f"CONSUMER.INFO.{name}")
        except BrokerError as exc:  # as before: it may be without a leader, or not made yet
            log.debug("lane_not_seen", consumer=name, error=str(exc))
            return
        self._of_lane[pool, lane] = int(info["num_pending"]) + int(info["num_ack_pending"])
