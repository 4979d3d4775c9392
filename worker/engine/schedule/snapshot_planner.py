"""Where recurrent states are kept, so that others may go on behind them."""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterator, Sequence

from worker.engine.cache.radix_cache import MatchResult
from worker.engine.cache.radix_node import RadixNode
from worker.engine.cache.state_snapshots import BorderState, OwnSnapshots, StateSnapshots
from worker.engine.request.req import Req
from worker.engine.request.schedule_batch import ScheduledReq, StateCopies, StateCopy


class SnapshotPlanner:
    """Keeps the state of each request at page borders where somebody may go on:

    - the last one in its prompt: the same prompt again, another choice, the next turn
    - where its prompt leaves a path that is cached or being computed: what many prompts begin with
    - the ends of what is declared public, and of what it asks to keep
    - the latest one that it has come by, overwritten at the next: when it ends, the next turn goes
      on there; when it is retracted, it does itself

    A state takes as much memory as many tokens of keys and values: one that would spare fewer than
    `min_gain_tokens` beside the one before it is not kept. Steps may end anywhere: a state is
    copied while a step comes by its border.
    """

    def __init__(self, snapshots: StateSnapshots, page_size: int) -> None:
        self._snapshots = snapshots
        self._page_size = page_size
        self._min_gain = -(-snapshots.min_gain_tokens // page_size)  # pages
        self._restored: list[StateCopy] = []  # for the next step

    def begin(self, req: Req, match: MatchResult) -> None:
        """It has a row, and goes on behind what was found."""
        num_found, size = len(match.pages), self._page_size
        if num_found:
            assert match.node.snapshot is not None
            num_tokens = num_found * size
            self._restored.append(StateCopy(req.row, match.node.snapshot, num_tokens))
        req.snapshots = OwnSnapshots([], num_found)
        for border in borders_of(req, match, size):
            self.want(req, border)

    def want(self, req: Req, border: int) -> None:
        """A place where others may go on, which no step has come to."""
        own = _own(req)
        border = min(border, self._last_border(req))
        if border - own.last_border >= self._min_gain and border not in own.wanted:
            bisect.insort(own.wanted, border)

    def borders_to_come(self, req: Req) -> list[int]:
        """Where its state will be found."""
        own = _own(req)
        return [each.border for each in own.kept] + own.wanted

    def plan(self, entries: Sequence[ScheduledReq]) -> StateCopies:
        """The plan of a step with these."""
        restored, self._restored = self._restored, []
        size = self._page_size
        kept = [
            StateCopy(entry.req.row, state.slot, state.border * size)
            for entry in entries
            if entry.end // size > entry.start // size
            for state in self._pass(_own(entry.req), entry.end // size)
        ]
        return StateCopies(restored, kept)

    def put(self, req: Req) -> None:
        """The cache has more of its pages, and takes the states between them."""
        kept = _own(req).kept
        while kept and kept[0].border <= req.num_cached_pages:
            border, slot = kept.pop(0)
            self._snapshots.put(_node_at(req, border), slot)

    def end(self, req: Req, *, keep: bool) -> None:
        """It gives its row back; with `keep` its pages are in the cache."""
        own, snapshots = _own(req), self._snapshots
        if own.latest is not None:
            snapshots.end_latest(own.latest.slot)
            own.kept.append(own.latest)
            own.latest = None
        if keep:
            self.put(req)
        for state in own.kept:  # at borders that a step in flight came to when it had ended
            snapshots.free(state.slot)
        req.snapshots = None

    def check_integrity(self, cached: Collection[RadixNode], running: Collection[Req]) -> None:
        """Raises RuntimeError when a slot is lost or in two places."""
        slots = [node.snapshot for node in cached if node.snapshot is not None]
        own = [_own(req) for req in running]
        self._snapshots.check_integrity(slots, [slot for each in own for slot in each.slots])
        num_latest = sum(each.latest is not None for each in own)
        if num_latest != self._snapshots.num_latest:
            raise RuntimeError(f"{self._snapshots.num_latest} latest states, {num_latest} owned")

    def _last_border(self, req: Req) -> int:
        """One token at least is computed behind it: somebody needs its logits."""
        return (req.num_tokens - 1) // self._page_size

    def _pass(self, own: OwnSnapshots, last: int) -> Iterator[BorderState]:
        """States to be kept in a step that comes to the border `last`."""
        while own.wanted and own.wanted[0] <= last:
            border = own.wanted.pop(0)
            if border - own.last_border < self._min_gain:
                continue
            slot = self._slot_for(own)
            if slot is not None:
                own.kept.append(BorderState(border, slot))
                own.last_border = border
                yield own.kept[-1]
        if last - own.last_border < self._min_gain:
            return
        slot = self._snapshots.allocate_latest() if own.latest is None else own.latest.slot
        if slot is not None:
            own.latest = BorderState(last, slot)
            yield own.latest

    def _slot_for(self, own: OwnSnapshots) -> int | None:
        """The latest state is of no use when this one stays."""
        if own.latest is None:
            return self._snapshots.allocate()
        slot = self._snapshots.end_latest(own.latest.slot)
        own.latest = None
        return slot


def borders_of(req: Req, match: MatchResult, page_size: int) -> set[int]:
    """Page borders where others may go on: the last one of its tokens, where it leaves a cached
    path, and the ends of what is declared public and of what it asks to keep.
    """
    num_prompt, public, keep = req.num_prompt_tokens, req.options.public, req.options.keep
    borders = {(req.num_tokens - 1) // page_size, match.num_known}
    if public is not None:
        borders.add(min(public.num_tokens, num_prompt) // page_size)
    if keep is not None:
        borders.add(min(keep.num_tokens or num_prompt, num_prompt) // page_size)
    return borders


def _own(req: Req) -> OwnSnapshots:
    assert req.snapshots is not None, "it has a row"
    return req.snapshots


def _node_at(req: Req, border: int) -> RadixNode:
    """The page before a border, on the way to the last one that it holds."""
    node = req.lock_node
    for _ in range(req.num_cached_pages - border):
        node = node.parent if node is not None else None
    assert node is not None
    return node
