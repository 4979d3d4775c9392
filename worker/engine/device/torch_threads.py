"""How many threads torch computes with, for a while; and threads that each compute alone."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch


@contextmanager
def torch_threads(num_threads: int) -> Iterator[None]:
    """Sets torch's threads for this thread, and for those that begin meanwhile."""
    usual = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


@contextmanager
def lone_threads(num_threads: int) -> Iterator[ThreadPoolExecutor]:
    """Threads for parts of one piece of work.

    torch's own wait for each other after each operation, and spin: where others compute, too, that
    takes more of the processors than the work does.
    """
    with torch_threads(1), ThreadPoolExecutor(num_threads) as threads:
        yield threads
