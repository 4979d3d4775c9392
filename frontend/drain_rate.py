"""How fast the queue is worked off: what a refused client is told to wait."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Mapping
from typing import NamedTuple

from shared.cluster import Cluster
from shared.errors import BrokerError
from shared.log import get_logger

MAX_RETRY_AFTER_S = 120
_INTERVAL_S = 1.0
_FRESH_S = 5.0
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
    """Looks at the queue every second, whatever the load."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.drain = DrainRate()
        self._seen_at = float("-inf")
        self.usage = 0.0  # the part of the queue that is used, in messages or bytes
        self._seen: Counter[tuple[str, str]] = Counter()  # messages by pool and class
        self._accepted: Counter[tuple[str, str]] = Counter()  # by us, since we looked

    def num_queued(self, pool: str, job_class: str) -> int:
        """Requests that wait or run. What other frontends accept is seen within a second."""
        return self._seen[pool, job_class] + self._accepted[pool, job_class]

    def note_accepted(self, pool: str, job_class: str, num_requests: int) -> None:
        """Count them, until they are seen; below 0: they did not come after all."""
        self._accepted[pool, job_class] += num_requests

    @property
    def is_fresh(self) -> bool:
        """Whether the queue was there lately."""
        return asyncio.get_running_loop().time() - self._seen_at < _FRESH_S

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._look()
            await asyncio.sleep(_INTERVAL_S)

    async def _look(self) -> None:
        try:
            name = self._cluster.subjects.requests_stream
            query = {"subjects_filter": self._cluster.subjects.request("*", "*")}
            info = await self._cluster.js.api(f"STREAM.INFO.{name}", query)
        except BrokerError as exc:
            log.debug("queue_not_seen", error=str(exc))
            return
        state, config = info["state"], info["config"]
        self._count(state.get("subjects") or {})
        self.usage = max(
            int(state[used]) / int(config[limit])
            for used, limit in (("messages", "max_msgs"), ("bytes", "max_bytes"))
        )
        # A message leaves this stream when its request is over, and in no other way.
        num_messages = int(state["messages"])
        num_finished = int(state["last_seq"]) - num_messages
        self._seen_at = asyncio.get_running_loop().time()
        self.drain.add(Sample(self._seen_at, num_messages, num_finished))

    def _count(self, messages: Mapping[str, int]) -> None:
        """By subject, as the server counts them."""
        self._seen.clear()
        self._accepted.clear()
        for subject, count in messages.items():
            pool, token = subject.split(".")[-2:]
            self._seen[pool, token.partition("-")[0]] += count  # of a class's lanes together
