"""The pages of the KV pool: how many there are, and which are free."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from shared.errors import ConfigError
from shared.machine.host_limits import available_memory_bytes
from worker.engine_link.engine_config import EngineConfig

MAX_DEFAULT_BYTES = 1 << 30
DEFAULT_SHARE = 0.25  # of the available memory
TAIL_SHARE = 8  # one of so many cached pages also has one in layers with a window, at least
MAX_EMPTY_TOKENS = 1 << 22  # the books of cached pages take 31 bytes a token


class PoolSize(NamedTuple):
    """The pages of a pool: of all layers, or of those without a window where the others have pages
    of their own.
    """

    num_pages: int
    num_window_pages: int | None = None  # None: a page has room in all layers


class PoolNeeds(NamedTuple):
    """What a pool takes, of pages of `page_size` tokens."""

    page_size: int
    bytes_per_token: int  # of all layers
    window_bytes_per_token: int = 0  # of those with a window
    # That requests which run hold, in layers with a window, at most; None: as many as in others
    num_running_pages: int | None = None

    def of_tokens(self, num_tokens: int) -> PoolSize:
        num_pages = num_tokens // self.page_size
        if self.num_running_pages is None:
            return PoolSize(num_pages)
        num_window_pages = self.num_running_pages + -(-num_pages // TAIL_SHARE)
        return PoolSize(num_pages, num_window_pages if num_window_pages < num_pages else None)

    def of_bytes(self, num_bytes: int) -> PoolSize:
        """The largest that takes so many."""
        slot_bytes = num_bytes // self.page_size  # of one token of each page
        alike = PoolSize(slot_bytes // self.bytes_per_token)
        if self.num_running_pages is None:
            return alike
        # Each page of the others has a part of one with a window, beside those that run
        num_left = slot_bytes - (self.num_running_pages + 1) * self.window_bytes_per_token
        other_bytes = self.bytes_per_token - self.window_bytes_per_token
        part_bytes = TAIL_SHARE * other_bytes + self.window_bytes_per_token
        size = self.of_tokens(TAIL_SHARE * num_left // part_bytes * self.page_size)
        return alike if size.num_window_pages is None else size

    def num_bytes(self, size: PoolSize) -> int:
        num_window_pages = size.num_pages
        if size.num_window_pages is not None:
            num_window_pages = size.num_window_pages
        num_other_bytes = self.bytes_per_token - self.window_bytes_per_token
        return self.page_size * (
            size.num_pages * num_other_bytes + num_window_pages * self.window_bytes_per_token
        )


def num_kv_pages(config: EngineConfig, needs: PoolNeeds) -> PoolSize:
    """From a number of tokens, or from memory. Raises ConfigError when it is none."""
    if config.num_kv_tokens is not None:
        size = needs.of_tokens(config.num_kv_tokens)
    else:
        size = needs.of_bytes(_kv_bytes(config))
    if size.num_pages < 1:
        raise ConfigError(
            f"the memory for keys and values does not hold one page of {config.page_size} tokens"
        )
    return size


def num_empty_pages(config: EngineConfig, max_running: int, max_context_len: int) -> int:
    """The pages of a model that keeps no keys and values: the scheduler admits by them, and
    prefixes are found by them. As configured, or for so many of the longest texts.
    """
    num_tokens = config.num_kv_tokens
    if num_tokens is None:
        num_tokens = min(MAX_EMPTY_TOKENS, max_running * (max_context_len + config.page_size))
    return max(1, num_tokens // config.page_size)


def _kv_bytes(config: EngineConfig) -> int:
    if config.kv_memory_bytes is not None:
        return config.kv_memory_bytes
    return min(MAX_DEFAULT_BYTES, int(available_memory_bytes() * DEFAULT_SHARE))


class PageAllocator:
    """The free pages of [0, num_pages), as a stack: the page freed last is still in the caches.

    One more page, `padding_page`, exists in the pool and is never handed out: it fills page tables
    behind their end, so that its slots may be read, and must be finite.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.padding_page = num_pages
        self._free = list(range(num_pages - 1, -1, -1))
        self._is_free = bytearray(b"\x01" * num_pages)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def can_allocate(self, num_pages: int) -> bool:
        return num_pages <= len(self._free)

    def allocate(self, num_pages: int) -> list[int]:
        """The content of the pages is undefined."""
        assert self.can_allocate(num_pages), f"{num_pages} pages wanted, {self.num_free} free"
        pages = [self._free.pop() for _ in range(num_pages)]
        for page in pages:
            self._is_free[page] = 0
        return pages

    def free(self, pages: Iterable[int]) -> None:
        for page in pages:
            assert not self._is_free[page], f"page {page} freed twice"
            self._is_free[page] = 1
            self._free.append(page)

    def is_free(self, page: int) -> bool:
        return bool(self._is_free[page])
