"""A page of the prefix cache in its place in the tree, and which pages are to stay for a while."""

from __future__ import annotations

import hashlib
import heapq
import itertools
from collections import OrderedDict
from collections.abc import Iterable, Iterator

_SLACK = 64  # entries of nodes that are pinned no more, before they are swept out


def next_chain(chain: bytes, key: bytes) -> bytes:
    """The chain of a page behind that of `chain`: a digest of a namespace and of all tokens up to
    its end.
    """
    return hashlib.sha256(chain + key).digest()


class RadixNode:
    """One page of tokens, after the pages of its ancestors."""

    __slots__ = (
        "_chain",
        "children",
        "key",
        "last_access",
        "num_holders",
        "num_window_holders",
        "page",
        "parent",
        "pinned_until",
        "queued_rank",
        "snapshot",
        "window_page",
    )

    def __init__(self, parent: RadixNode | None, key: bytes, page: int, last_access: int) -> None:
        self.parent = parent  # None for the root, which holds no page
        self.key = key  # its token ids; of a first page, behind the namespace
        self.page = page
        self.last_access = last_access
        self.children: dict[bytes, RadixNode] = {}
        self.num_holders = 0  # locks that end here, and held children
        self.pinned_until = 0.0  # by the engine's clock; 0: it is not pinned
        self.queued_rank: tuple[bool, int] | None = None  # its place in the eviction heap
        # The slot of the recurrent state behind it, which may leave before the page does
        self.snapshot: int | None = None
        # The same of what layers with a window keep of its tokens: it has a page of its own
        self.window_page: int | None = None
        self.num_window_holders = 0  # requests whose next token sees it
        self._chain: bytes | None = b"" if parent is None else None

    @property
    def eviction_rank(self) -> tuple[bool, int]:
        """The lowest goes first: of the pinned ones none, as long as there are others."""
        return self.pinned_until > 0, self.last_access

    @property
    def chain(self) -> bytes:
        """The name of its page outside this process."""
        unnamed: list[RadixNode] = []
        node = self
        while node._chain is None:
            unnamed.append(node)
            assert node.parent is not None
            node = node.parent
        chain = node._chain
        for each in reversed(unnamed):
            chain = each._chain = next_chain(chain, each.key)
        return chain

    def path_up(self) -> Iterator[RadixNode]:
        """Itself and its ancestors, but for the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent

    def __lt__(self, other: RadixNode) -> bool:
        return self.last_access < other.last_access


class NodeQueue:
    """Nodes that may lose what they have beside their page. The first does so next; those that are
    pinned after all others.
    """

    def __init__(self) -> None:
        self._nodes: OrderedDict[RadixNode, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, node: RadixNode) -> bool:
        return node in self._nodes

    def push(self, node: RadixNode, *, is_last: bool = True) -> None:
        """To an end of the queue, wherever it is."""
        self._nodes[node] = None
        self._nodes.move_to_end(node, last=is_last)

    def remove(self, node: RadixNode) -> None:
        del self._nodes[node]

    def first(self) -> RadixNode | None:
        for _ in range(len(self._nodes)):
            node = next(iter(self._nodes))
            if node.pinned_until == 0:
                break
            self._nodes.move_to_end(node)  # once more round
        return next(iter(self._nodes), None)


class PinRegistry:
    """At most `max_pins` nodes that are to stay for a while, and until when.

    Beyond that those give way that were pinned longest ago. A pin ends nothing but a node's early
    eviction, so that whoever loses one loses little. All operations take logarithmic time, on the
    average over many.
    """

    def __init__(self, max_pins: int) -> None:
        self._max_pins = max_pins
        self._nodes: OrderedDict[RadixNode, None] = OrderedDict()  # the one pinned last is the last
        self._expiries: list[tuple[float, int, RadixNode]] = []  # heap; some are out of date
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, node: RadixNode) -> bool:
        return node in self._nodes

    @property
    def max_pins(self) -> int:
        return self._max_pins

    def pin(self, nodes: Iterable[RadixNode], until: float) -> list[RadixNode]:
        """The most important node last. Returns those that are pinned no more.

        A node that is pinned for longer stays so.
        """
        for node in nodes:
            self._nodes[node] = None
            self._nodes.move_to_end(node)
            if until > node.pinned_until:
                node.pinned_until = until
                heapq.heappush(self._expiries, (until, next(self._numbers), node))
        displaced = []
        while len(self._nodes) > self._max_pins:
            node, _ = self._nodes.popitem(last=False)
            node.pinned_until = 0.0
            displaced.append(node)
        self._maybe_sweep()
        return displaced

    def forget(self, node: RadixNode) -> None:
        """It has left the cache."""
        if node in self._nodes:
            del self._nodes[node]
            node.pinned_until = 0.0
            self._maybe_sweep()

    def take_expired(self, now: float) -> list[RadixNode]:
        """Those whose time is over are pinned no more."""
        expired = []
        while self._expiries and self._expiries[0][0] <= now:
            until, _, node = heapq.heappop(self._expiries)
            if node.pinned_until == until:
                del self._nodes[node]
                node.pinned_until = 0.0
                expired.append(node)
        return expired

    def check_integrity(self) -> None:
        """Raises RuntimeError when a pin would never end."""
        current = {node for until, _, node in self._expiries if node.pinned_until == until}
        if current != set(self._nodes):
            raise RuntimeError("a node is pinned for ever, or has lost its pin")
        if len(self._nodes) > self._max_pins:
            raise RuntimeError(f"{len(self._nodes)} nodes are pinned, at most {self._max_pins}")
        if len(self._expiries) > 2 * len(self._nodes) + _SLACK:
            raise RuntimeError("pins that are over pile up")

    def _maybe_sweep(self) -> None:
        if len(self._expiries) > 2 * len(self._nodes) + _SLACK:
            self._expiries = [each for each in self._expiries if each[2].pinned_until == each[0]]
            heapq.heapify(self._expiries)
