"""Recurrent states that are kept at page borders: how many there are, and whose each of them is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from worker.engine.cache.radix_node import NodeQueue, RadixNode
from worker.engine_link.engine_config import EngineConfig

MAX_DEFAULT_BYTES = 1 << 30
DEFAULT_SHARE = 0.25  # of the available memory
MIN_GAIN_TOKENS = 32  # fewer are computed again about as fast as a state is copied


def num_snapshots(
    config: EngineConfig,
    state_bytes: int,
    num_pages: int,
    num_available_bytes: int,
    num_other_bytes: int,
) -> int:
    """As configured, or by memory: no more than there are pages, and 0 where not one fits.

    `num_other_bytes` of the available ones are for pages and for requests that run.
    """
    if config.state_snapshots is not None:
        return config.state_snapshots
    available = num_available_bytes
    usable = min(MAX_DEFAULT_BYTES, int(available * DEFAULT_SHARE), available - num_other_bytes)
    return min(num_pages, max(0, usable) // state_bytes)


class BorderState(NamedTuple):
    """The state at a page border, which is so many pages behind a text's beginning."""

    border: int
    slot: int


@dataclass(slots=True)
class OwnSnapshots:
    """The snapshots of a request that has a row: where its state is to be kept, and the slots that
    it has.
    """

    wanted: list[int]  # borders, rising, that no step has come to yet
    last_border: int  # of the last state that stays
    kept: list[BorderState] = field(default_factory=list)  # rising; the cache does not have them
    latest: BorderState | None = None  # overwritten as the request goes on

    @property
    def slots(self) -> list[int]:
        latest = [] if self.latest is None else [self.latest]
        return [each.slot for each in self.kept + latest]


class StateSnapshots:
    """Slots [0, num_slots): each is free, a request's, or of a page of the radix cache.

    A page without one holds keys and values that are of use only behind the state of another. New
    slots come from the free ones, then from pages, the least recently found first; those that are
    pinned after all others. At most half of them are latest states of requests that run.
    """

    def __init__(self, num_slots: int, min_gain_tokens: int = MIN_GAIN_TOKENS) -> None:
        self.num_slots = num_slots
        self.min_gain_tokens = min_gain_tokens  # what a state is to spare, beside the one before it
        self.num_latest = 0
        self.version = 0  # as long as it stays, the same pages have one
        self._free = list(range(num_slots - 1, -1, -1))
        self._nodes = NodeQueue()  # the one found last is the last

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """How many are of pages of the radix cache."""
        return len(self._nodes)

    def allocate(self) -> int | None:
        """A slot for a request. None: requests have them all."""
        if self._free:
            return self._free.pop()
        node = self._nodes.first()
        return None if node is None else self._take_from(node)

    def allocate_latest(self) -> int | None:
        """A slot for what a request has computed last: it is overwritten as that goes on."""
        if self.num_latest >= self.num_slots // 2:
            return None
        slot = self.allocate()
        self.num_latest += slot is not None
        return slot

    def end_latest(self, slot: int) -> int:
        """It stays as it is now."""
        self.num_latest -= 1
        return slot

    def free(self, slot: int) -> None:
        """A request's, not its latest."""
        self._free.append(slot)

    def put(self, node: RadixNode, slot: int) -> None:
        """A request's becomes that of a page, which may have one already."""
        if node.snapshot is None:
            node.snapshot = slot
            self._nodes.push(node)
            self.version += 1
        else:
            self.free(slot)
            self.use(node)

    def use(self, node: RadixNode) -> None:
        """It has been found."""
        self._nodes.push(node)

    def forget(self, node: RadixNode) -> None:
        """The page leaves the cache."""
        if node.snapshot is not None:
            self.free(self._take_from(node))

    def check_integrity(self, cached: list[int], owned: list[int]) -> None:
        """Checks it with the slots of all pages and requests. Raises RuntimeError when one is lost
        or in two places.
        """
        slots = self._free + cached + owned
        if sorted(slots) != list(range(self.num_slots)):
            raise RuntimeError(f"{self.num_slots} slots for states are not in one place each")
        if self.num_latest > self.num_slots // 2:
            raise RuntimeError(f"{self.num_latest} of {self.num_slots} states are latest ones")
        if len(cached) != len(self._nodes):
            raise RuntimeError(f"{len(cached)} pages have a state, {len(self._nodes)} in the book")

    def _take_from(self, node: RadixNode) -> int:
        slot, node.snapshot = node.snapshot, None
        assert slot is not None
        self._nodes.remove(node)
        self.version += 1
        return slot
