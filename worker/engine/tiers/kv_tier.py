"""The seam to what keeps pages of keys and values when the pool has no room for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from worker.engine_link.engine_messages import PagePeer

_WEIGHT = 0.25  # of the newest page, in a moving average

PageContent: TypeAlias = npt.NDArray[np.uint8]  # [num_page_bytes]


class PageMemory(Protocol):
    """The pool's memory, page by page. Only the thread of the engine's loop calls it."""

    @property
    def num_page_bytes(self) -> int: ...

    def read_page(self, page: int, content: PageContent) -> None:
        """Copies what all layers keep of it to `content`."""
        ...

    def write_page(self, page: int, content: PageContent) -> None: ...


@dataclass(slots=True)
class TierCounts:
    """Since start, in pages."""

    num_read: int = 0
    num_written: int = 0
    rejected: Counter[str] = field(default_factory=Counter)  # by reason: read, but not taken
    lost: Counter[str] = field(default_factory=Counter)  # by reason: not written


@dataclass(slots=True)
class FetchCounts:
    """Since start, in pages."""

    num_read: int = 0
    rejected: Counter[str] = field(default_factory=Counter)  # by reason: not had, or not taken


class PageSource(Protocol):
    """Whom pages are read from, by a thread of its own."""

    def order(self, chain: bytes, used_ns: int) -> None:
        """Begins to read it. `used_ns` of the system's clock: the oldest go first."""
        ...

    def take_arrived(self) -> Sequence[PageContent | None]:
        """What was read since the last call, in the order of its orders. None: it is not to be
        had.
        """
        ...

    @property
    def max_ordered(self) -> int:
        """How many orders may be on their way: arrived ones count until they are taken."""
        ...

    @property
    def read_s(self) -> float | None:
        """How long reading a page takes. None: none was read yet."""
        ...


class KVTransfer(Protocol):
    """The seam to pages that other workers have. No call waits."""

    fetched: FetchCounts

    def source(self, peer: PagePeer) -> PageSource | None:
        """The pages of this worker, whether it has them or not. None: too many others are asked."""
        ...


class KVTier(PageSource, Protocol):
    """Pages by their chains: digests of a namespace and of all tokens up to the page's end.

    No call but `find` waits for a disk: what takes time is done by threads. What cannot be read, or
    is not what was written, is computed again.
    """

    counts: TierCounts
    place: str  # names it, to those who read and write the very same pages

    def has(self, chain: bytes) -> bool:
        """Whether it can be read, as far as is known."""
        ...

    def find(self, chain: bytes) -> bool:
        """The same, where another may have put it there a moment ago: looks again, at once."""
        ...

    def is_known(self, chain: bytes) -> bool:
        """Whether it can be read, or will be as soon as it is written."""
        ...

    @property
    def has_room(self) -> bool:
        """Whether there is room for one more that waits to be written."""
        ...

    def put(self, chain: bytes, content: PageContent, used_ns: int) -> None:
        """Writes it, at some time. `used_ns` of the system's clock: the oldest go first."""
        ...

    @property
    def write_s(self) -> float | None: ...

    @property
    def num_pages(self) -> int: ...

    @property
    def num_bytes(self) -> int:
        """The bytes of all pages there, also of other models and workers."""
        ...

    def clear(self) -> None:
        """Forgets all of them."""
        ...


def averaged(average: float | None, sample: float) -> float:
    """A moving average of how long pages take."""
    return sample if average is None else average + _WEIGHT * (sample - average)
