"""What it looks like when a GPU has no memory left, and what is said when an engine starts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from shared.errors import ConfigError, GpuMemoryShort

# Of torch's allocator, of the driver, of Triton when it loads a kernel; of cuBLAS.
_WORDS = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def is_out_of_memory(error: BaseException) -> bool:
    """Also when something else has failed on the way out: the capture of a graph does."""
    cause: BaseException | None = error
    while cause is not None:
        if any(words in str(cause) for words in _WORDS):
            return True
        cause = cause.__context__
    return False


@contextmanager
def memory_for(what: str, remedy: str) -> Iterator[None]:
    """Raises ConfigError where the GPU has no memory for it."""
    try:
        yield
    except (RuntimeError, GpuMemoryShort) as exc:
        if isinstance(exc, RuntimeError) and not is_out_of_memory(exc):
            raise
        raise ConfigError(f"the GPU has no memory for {what}; {remedy}") from None
