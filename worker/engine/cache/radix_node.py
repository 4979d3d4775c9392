"""A page of the prefix cache, in its place in the tree."""

from __future__ import annotations


class RadixNode:
    """One page of tokens, after the pages of its ancestors."""

    __slots__ = (
        "children",
        "key",
        "last_access",
        "num_holders",
        "page",
        "parent",
        "pinned_until",
        "queued_rank",
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

    @property
    def eviction_rank(self) -> tuple[bool, int]:
        """The lowest goes first: of the pinned ones none, as long as there are others."""
        return self.pinned_until > 0, self.last_access

    def __lt__(self, other: RadixNode) -> bool:
        return self.last_access < other.last_access
