"""Tells workers that they have lost a request, without telling them for every frame."""

from __future__ import annotations

import time
from collections import OrderedDict

from detok.detok_stats import DetokStats
from detok.text_outbox import TextOutbox
from shared.protocol.codec import encode
from shared.protocol.notices import Fenced
from shared.subjects import Subjects

_INTERVAL_S = 1.0
_MAX_REMEMBERED = 10_000


class FenceNotices:
    """At most one notice a second for each (request, epoch)."""

    def __init__(self, subjects: Subjects, outbox: TextOutbox, stats: DetokStats) -> None:
        self._subjects = subjects
        self._outbox = outbox
        self._stats = stats
        self._sent_at: OrderedDict[tuple[str, int], float] = OrderedDict()

    def send(self, pool: str, rid: str, epoch: int, worker: str) -> None:
        key = (rid, epoch)
        now = time.monotonic()
        if now - self._sent_at.get(key, -_INTERVAL_S) < _INTERVAL_S:
            return
        self._sent_at[key] = now
        self._sent_at.move_to_end(key)
        if len(self._sent_at) > _MAX_REMEMBERED:
            self._sent_at.popitem(last=False)
        self._stats.fence_notices += 1
        notice = Fenced(rid=rid, epoch=epoch, worker=worker)
        self._outbox.post(self._subjects.control(pool), encode(notice))
