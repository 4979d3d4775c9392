"""The attention kernels that are measured, by the names of `--backends`."""

from __future__ import annotations

from typing import NamedTuple

from bench.gpu.task import Task

HEAD_DIM = 128
GROUPS = (2, 4)  # query heads to a KV head
PAGE_SIZE = 16


class Backend(NamedTuple):
    """Kernels of a step's two parts; where it has none, our own compute beside it."""

    decode: str | None
    prefill: str | None


BACKENDS = {
    "torch": Backend("torch", "torch"),
    "triton": Backend("triton", "triton"),
    "fa2": Backend("fa2", "fa2"),
    "fa3": Backend(None, "fa3"),
    "xqa": Backend("xqa", None),
}
OF_FLASHINFER = ("fa2", "fa3", "xqa")


def is_compiled(backend: str, heads: tuple[int, int, int], page_size: int) -> bool:
    """Whether `build_kernels` has made its kernels for so many heads of queries, heads of keys and
    values, and values a head. To compile more would take longer than to measure them.
    """
    num_heads, num_kv_heads, head_dim = heads
    if backend not in OF_FLASHINFER:
        return True
    if backend == "xqa" and (num_heads // num_kv_heads not in GROUPS or page_size != PAGE_SIZE):
        return False
    return head_dim == HEAD_DIM


def may_use_flashinfer(task: Task) -> bool:
    """All engines may; of attention alone, those that ask for it."""
    return task.backend in OF_FLASHINFER or (
        task.backend == "auto" and task.stage not in ("environment", "linears", "tests")
    )
