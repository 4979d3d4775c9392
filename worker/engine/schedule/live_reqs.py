"""The requests that the engine has, and where each of them stands."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Sequence

from worker.engine.request.req import Req, ReqStatus
from worker.engine.schedule.kv_ledger import KVLedger
from worker.engine.schedule.tier_ledger import TierLedger
from worker.engine.schedule.waiting_queue import WaitingQueue
from worker.engine.speculation.drafter import Drafter

MIN_PENDING_TOKENS = 32  # fewer are computed again as fast as waited for


class PendingPrefixes:
    """Prefixes that running prefills are about to put into the cache, page by page.

    So nobody starts to compute the same. Of a model that keeps states they are of use where a state
    will be found, and there alone.
    """

    def __init__(self, ledger: KVLedger) -> None:
        self._ledger = ledger
        self._min_pages = -(-MIN_PENDING_TOKENS // ledger.page_size)
        self._num_fillers: Counter[int] = Counter()  # hash of a prefix -> running prefills with it
        self._hashes: dict[int, list[int]] = {}  # by run_id
        self._fillers: dict[int, Req] = {}  # by run_id, of a model that keeps states

    def add(self, req: Req) -> None:
        """Its prefill begins: its cached pages are known."""
        if not self._ledger.has_prefixes:
            return
        hashes = self._ledger.prefix_hashes(req)
        planner = self._ledger.planner
        if planner is not None:
            for other in self._fillers.values():
                planner.want(req, _num_equal(hashes, other.prefix_hashes))
            self._fillers[req.run_id] = req
            return
        self._hashes[req.run_id] = hashes[req.num_cached_pages :]
        self._num_fillers.update(self._hashes[req.run_id])

    def discard(self, req: Req) -> None:
        """Its prefill is over, if it ran."""
        self._fillers.pop(req.run_id, None)
        for prefix_hash in self._hashes.pop(req.run_id, ()):
            self._num_fillers[prefix_hash] -= 1
            if self._num_fillers[prefix_hash] == 0:
                del self._num_fillers[prefix_hash]

    def will_serve(self, req: Req) -> bool:
        """Whether a longer prefix than it finds now will soon be in the cache."""
        if not (self._num_fillers or self._fillers) or not req.reads_cache:
            return False
        hashes = self._ledger.prefix_hashes(req)
        first = len(self._ledger.match(req).pages) + self._min_pages
        # The last token is computed in any case: the page that it completes is no gain.
        last = (req.num_tokens - 1) // self._ledger.page_size
        if self._ledger.planner is None:
            return first <= last and hashes[first - 1] in self._num_fillers
        return any(
            first <= border <= last and other.prefix_hashes[border - 1] == hashes[border - 1]
            for other in self._fillers.values()
            for border in self._ledger.planner.borders_to_come(other)
        )


def _num_equal(hashes: Sequence[int], others: Sequence[int]) -> int:
    """The first pages of two paths that are the same: each hash is of all pages up to its own."""
    indices = range(min(len(hashes), len(others)))
    return bisect.bisect_left(indices, x=True, key=lambda idx: hashes[idx] != others[idx])


class LiveReqs:
    """Each waits or runs. One that has ended leaves when no step in flight uses its pages."""

    def __init__(
        self,
        ledger: KVLedger,
        waiting: WaitingQueue,
        drafter: Drafter | None,
        tier: TierLedger | None = None,
    ) -> None:
        self._ledger = ledger
        self._drafter = drafter
        self._tier = tier
        self._by_run_id: dict[int, Req] = {}  # waiting and running
        self.waiting = waiting
        self.running: list[Req] = []  # in order of admission
        # Of these, by run_id: some of their tokens are in no step yet. All others decode.
        self.prefilling: dict[int, Req] = {}
        self.pending_prefixes = PendingPrefixes(ledger)
        # Ended, but a step in flight uses their pages; whether these are worth keeping then.
        self.leaving: dict[Req, bool] = {}

    def __len__(self) -> int:
        """Without those that leave."""
        return len(self._by_run_id)

    def add(self, req: Req) -> None:
        assert req.run_id not in self._by_run_id, "run ids are never used twice"
        self._by_run_id[req.run_id] = req
        self.waiting.push(req)

    def abort(self, run_id: int) -> None:
        """Drops it without a word. Unknown ids are ignored."""
        req = self._by_run_id.get(run_id)
        if req is None:
            return
        if req.status is ReqStatus.WAITING:
            self.waiting.remove(req)
        self.end(req)

    def begin(self, req: Req) -> None:
        """It joins the running batch; its pages are held."""
        self.waiting.remove(req)
        if self._tier is not None:
            self._tier.forget(req)
        req.status = ReqStatus.RUNNING
        self.running.append(req)
        self.prefilling[req.run_id] = req
        self.pending_prefixes.add(req)

    def commit(self, req: Req) -> None:
        """A part of its prefill is computed: others find it."""
        self._ledger.commit(req)
        if self._tier is not None:
            self._tier.note_computed(req)

    def retract(self, req: Req) -> None:
        """It waits again, at its old place."""
        self._release(req, keep=True)
        self._leave_batch(req)
        if self._drafter is not None:
            self._drafter.forget(req)
        req.status = ReqStatus.WAITING
        self.waiting.push(req)

    def end(self, req: Req, *, keep: bool = True) -> None:
        """No step has it from now on; what it holds is free when none in flight uses it."""
        if req.status is ReqStatus.RUNNING:
            self._leave_batch(req)
        req.status = ReqStatus.FINISHED
        del self._by_run_id[req.run_id]
        if self._drafter is not None:
            self._drafter.forget(req)
        if self._tier is not None:
            self._tier.forget(req)
        self.leaving[req] = keep
        self.maybe_release(req)

    def maybe_release(self, req: Req) -> None:
        """Releases one that leaves once no step has it; called after each step that had it."""
        if req.num_in_flight == 0:
            self._release(req, keep=self.leaving.pop(req))

    def check_integrity(self) -> None:
        """Raises RuntimeError when the books do not agree."""
        if len(self) != len(self.waiting) + len(self.running):
            raise RuntimeError("a request is neither waiting nor running, or both")
        if any(
            not (req.run_id in self.prefilling or req.is_decoding or req.num_in_flight)
            for req in self.running
        ):
            raise RuntimeError("a request decodes before its prefill is over")
        self.waiting.check_integrity()
        self._ledger.check_integrity([*self.running, *self.leaving])
        if self._tier is not None:
            self._tier.check_integrity()
        if any(req.num_in_flight < 1 for req in self.leaving):
            raise RuntimeError("a request that has ended keeps its pages")

    def _release(self, req: Req, *, keep: bool) -> None:
        last = self._ledger.release(req, keep=keep)
        if self._tier is not None:
            self._tier.keep(last)

    def _leave_batch(self, req: Req) -> None:
        self.running.remove(req)
        self.prefilling.pop(req.run_id, None)
        self.pending_prefixes.discard(req)
