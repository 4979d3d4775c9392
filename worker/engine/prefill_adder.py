"""Decides who may still join a step, within its tokens and pages."""

from __future__ import annotations

from worker.engine.kv.kv_ledger import KVLedger
from worker.engine.req import Req
from worker.engine.schedule_batch import ScheduledReq

MAX_RESERVED_TOKENS = 4096


class PrefillAdder:
    """Fills one step: chunks of running requests first, then new ones.

    A new request must find pages for all of its tokens, beside what the running prefills still
    need and a share of the output that the running requests may still make.
    """

    def __init__(self, ledger: KVLedger, token_budget: int, reserve_ratio: float) -> None:
        self._ledger = ledger
        self._reserve_ratio = reserve_ratio
        self.token_budget = token_budget
        self.entries: list[ScheduledReq] = []

    def add_chunk(self, req: Req) -> None:
        """As much of its prefill as tokens and pages allow; maybe nothing."""
        end = min(
            req.num_tokens,
            req.num_computed + self.token_budget,
            self._ledger.num_tokens_in_reach(req),
        )
        if end <= req.num_computed:
            return
        self._ledger.extend(req, end)
        self.entries.append(ScheduledReq.up_to(req, end))
        self.token_budget -= end - req.num_computed

    def try_admit(self, req: Req, running: list[Req]) -> bool:
        """Gives a waiting request its row and its first chunk, if it may join now."""
        if self.token_budget < 1 or self._ledger.num_free_rows < 1:
            return False
        match = self._ledger.match(req)
        num_pages = -(-(req.num_tokens + 1) // self._ledger.page_size) - len(match.pages)
        num_available = self._ledger.num_available_pages - match.num_evictable
        # Alone it may have everything: it has been checked that its tokens fit.
        if running and num_pages + self._num_reserved_pages(running) > num_available:
            return False
        self._ledger.attach(req, match)
        self.add_chunk(req)
        return True

    def _num_reserved_pages(self, running: list[Req]) -> int:
        num_pages = 0
        for req in running:
            remaining = min(req.sampling.max_tokens - req.num_output_tokens, MAX_RESERVED_TOKENS)
            future_len = req.num_tokens + int(remaining * self._reserve_ratio)
            num_pages += self._ledger.num_pages_short(req, future_len)
        return num_pages
