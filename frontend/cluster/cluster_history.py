"""The figures of the service, now and over the last minutes, as one frontend has seen them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from msgspec import UNSET, UnsetType

from frontend.cluster.cluster_answer import ClusterFigures, ClusterHistoryView
from frontend.cluster.view import Viewer, figures_for
from shared.protocol.role_cards import WorkerCard
from shared.snapshot.cluster_snapshot import ClusterSnapshot

KEPT_S = 300.0
MIN_GAP_S = 4.0  # between two samples: what looks every five seconds is always kept


@dataclass(frozen=True, slots=True)
class _Sample:
    """One moment: the figures of the service, and the share of slots in use of each worker."""

    figures: ClusterFigures
    slot_usage: Mapping[str, float]


class _GrowingSum:
    """Adds up what counters grow by, each from when it was first seen: they end with their owners.

    A counter that was not there at the first look has begun at 0 since then.
    """

    def __init__(self) -> None:
        self.total = 0
        self._has_begun = False
        self._seen: dict[str, tuple[int, float]] = {}  # owner -> its count, and when it was seen

    def note(self, counts: Mapping[str, int], at: float) -> int:
        """The sum after these counts; `at` is in unix seconds."""
        for owner, count in counts.items():
            before, _ = self._seen.get(owner, (0 if self._has_begun else count, at))
            self.total += max(0, count - before)
            self._seen[owner] = max(count, before), at
        for owner in [each for each, (_, seen_at) in self._seen.items() if seen_at < at - KEPT_S]:
            del self._seen[owner]
        self._has_begun = True
        return self.total


class ClusterHistory:
    """Five minutes of samples, some seconds apart: at most `KEPT_S / MIN_GAP_S` of them.

    It is given each snapshot of the service that this frontend reads, and reads none itself.
    """

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque()
        self._last: ClusterFigures | None = None
        self._redelivered = _GrowingSum()
        self._fenced = _GrowingSum()

    def note(self, snapshot: ClusterSnapshot) -> ClusterFigures:
        """The figures of this moment; the same ones again for a snapshot that is known."""
        if self._last is None or self._last.at != round(snapshot.at, 3):
            self._last = self._figures(snapshot)
            self._maybe_keep(self._last, snapshot.workers)
        return self._last

    def view(self, viewer: Viewer) -> ClusterHistoryView:
        """What was kept, oldest first, as this viewer may see it."""
        figures = [figures_for(each.figures, viewer) for each in self._samples]
        workers = dict.fromkeys(worker for each in self._samples for worker in each.slot_usage)
        return ClusterHistoryView(
            samples=figures,
            slot_usage={
                worker: [each.slot_usage.get(worker) for each in self._samples]
                for worker in workers
            },
        )

    def _figures(self, snapshot: ClusterSnapshot) -> ClusterFigures:
        workers, works = snapshot.workers, [card.work for card in snapshot.workers]
        num_tokens = sum(card.num_kv_tokens for card in workers)
        num_used = sum(card.kv_cache_usage * card.num_kv_tokens for card in workers)
        num_queries = sum(work.num_prefix_queries for work in works)
        num_hits = sum(work.num_prefix_hits for work in works)
        return ClusterFigures(
            at=round(snapshot.at, 3),
            num_waiting=sum(queue.num_waiting for queue in snapshot.queues),
            oldest_wait_s=max((queue.oldest_wait_s for queue in snapshot.queues), default=0.0),
            num_running=sum(card.num_running for card in workers),
            max_running=sum(card.max_running for card in workers),
            kv_cache_usage=_share(num_used, num_tokens),
            prefix_hits=_share(num_hits, num_queries),
            tokens_per_s=round(sum(snapshot.tokens_per_s.values()), 1),
            num_redelivered=self._redelivered.note(
                {card.worker: card.work.num_redelivered for card in workers}, snapshot.at
            ),
            num_fenced=self._fenced.note(
                {card.id: card.num_fenced for card in snapshot.roles}, snapshot.at
            ),
        )

    def _maybe_keep(self, figures: ClusterFigures, workers: Iterable[WorkerCard]) -> None:
        if self._samples and figures.at < self._samples[-1].figures.at:
            self._samples.clear()  # this machine's clock was put back
        while self._samples and self._samples[0].figures.at < figures.at - KEPT_S:
            self._samples.popleft()
        if self._samples and figures.at < self._samples[-1].figures.at + MIN_GAP_S:
            return
        usage = {
            card.worker: round(min(1.0, card.num_running / card.max_running), 2)
            for card in workers
            if card.max_running
        }
        self._samples.append(_Sample(figures, usage))


def _share(part: float, whole: int) -> float | UnsetType:
    return round(min(1.0, part / whole), 4) if whole else UNSET
