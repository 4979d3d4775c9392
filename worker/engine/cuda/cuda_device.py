"""An NVIDIA GPU, as torch.cuda drives it."""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from pathlib import Path

import torch

from shared.errors import NotCapturable
from shared.machine.gpu_driver import TorchBuild, visible_driver, why_not_cuda
from worker.engine.device.gpu_device import Moment, Work
from worker.engine.device.gpu_memory import is_out_of_memory


def has_gpu() -> bool:
    """Whether this machine has one that torch can use."""
    return torch.cuda.is_available()


def gpu_obstacle(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> str | None:
    """Why torch cannot use the NVIDIA GPU that this process was given; None when it has none."""
    driver = visible_driver(environ, root)
    if driver is None:
        return None
    known = why_not_cuda(driver, TorchBuild(torch.__version__, torch.version.cuda))
    if known is not None:
        return str(known)
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as exc:  # the driver's words; a build without CUDA
        reason = str(exc).partition("\n")[0]
    else:
        reason = "it finds no device"
    return (
        f"torch {torch.__version__} for CUDA {torch.version.cuda} cannot use the GPU beside NVIDIA "
        f"driver {driver or '(unknown)'}: {reason}; --device cpu runs on the processor"
    )


def num_gpus() -> int:
    """That torch can use."""
    return torch.cuda.device_count() if has_gpu() else 0


class CudaDevice:
    """One NVIDIA GPU. Everything is in the order of one stream: its own, and its thread's.

    With `check_syncs` torch refuses whatever would wait for the GPU within enqueued work. (It does
    not see all: collectives and copies of memory that is not pinned pass.)
    """

    def __init__(self, index: int = 0, *, check_syncs: bool = False) -> None:
        self.torch_device = torch.device("cuda", index)
        self.check_syncs = check_syncs
        torch.cuda.set_device(self.torch_device)
        self._stream = torch.cuda.Stream(self.torch_device)  # type: ignore[no-untyped-call]
        # Weights and tables, too, are made in its order: no step reads them half written.
        torch.cuda.set_stream(self._stream)
        self.begin_graphs()

    @property
    def name(self) -> str:
        return torch.cuda.get_device_name(self.torch_device)

    @property
    def num_processors(self) -> int:
        return torch.cuda.get_device_properties(self.torch_device).multi_processor_count

    @property
    def capability(self) -> tuple[int, int]:
        return torch.cuda.get_device_capability(self.torch_device)

    def empty_host(self, num_values: int, dtype: torch.dtype) -> torch.Tensor:
        """Torch gives the memory to somebody else only when copies from and to it are done: each
        copy that does not block notes its stream with the memory, and an event is recorded there
        when the memory is given back.
        """
        return torch.empty(num_values, dtype=dtype, pin_memory=True)

    def enqueue(self, work: Work) -> None:
        if self.check_syncs:
            torch.cuda.set_sync_debug_mode("error")
        try:
            with torch.cuda.stream(self._stream):
                work()
        except RuntimeError as exc:
            if is_out_of_memory(exc):
                raise torch.OutOfMemoryError(str(exc)) from None
            raise
        finally:
            if self.check_syncs:
                torch.cuda.set_sync_debug_mode("default")

    def give_back(self) -> None:
        self._stream.synchronize()
        torch.cuda.empty_cache()

    def mark(self) -> Moment:
        # blocking: who waits sleeps, and leaves the core to others.
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return _CudaMoment(event)

    def begin_graphs(self) -> None:
        self._graph_pool = torch.cuda.graph_pool_handle()
        # Torch captures nothing into a pool whose graphs are all gone while their memory is not.
        one = torch.zeros(1, device=self.torch_device)

        def count() -> None:
            one.add_(1)

        self._kept_graph = self.capture(count)

    def capture(self, work: Work) -> Work:
        """After two runs: kernels are compiled and libraries have their workspaces before."""
        for _ in range(2):
            self.enqueue(work)
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            # thread_local: NCCL has a thread that looks at events meanwhile.
            with torch.cuda.graph(
                graph,
                pool=self._graph_pool,
                stream=self._stream,
                capture_error_mode="thread_local",
            ):
                work()
        except RuntimeError as exc:
            self._end_capture()
            cause = exc.__context__ or exc  # the end of a broken capture raises another one
            if is_out_of_memory(cause):
                raise torch.OutOfMemoryError(str(cause)) from None
            raise NotCapturable(_where_and_what(cause)) from cause
        return graph.replay

    def _end_capture(self) -> None:
        """Ends a capture that CUDA broke off: torch leaves its allocator in the midst of it.

        A torch without these calls keeps that memory.
        """
        index = self.torch_device.index
        try:
            torch._C._cuda_endAllocateToPool(index, self._graph_pool)
        except (RuntimeError, AttributeError):
            return  # it was not broken off, and has ended; or there is no such call
        torch._C._cuda_releasePool(index, self._graph_pool)

    def free_bytes(self) -> int:
        """What torch holds without using it counts as free."""
        self.give_back()
        return self.unused_bytes()

    def unused_bytes(self) -> int:
        free, _ = torch.cuda.mem_get_info(self.torch_device)
        return free

    def held_bytes(self) -> int:
        return torch.cuda.memory_allocated(self.torch_device)

    def total_bytes(self) -> int:
        _, total = torch.cuda.mem_get_info(self.torch_device)
        return total

    def peak_bytes(self, work: Work) -> int:
        torch.cuda.reset_peak_memory_stats(self.torch_device)
        before = torch.cuda.memory_allocated(self.torch_device)
        self.enqueue(work)
        self._stream.synchronize()
        return torch.cuda.max_memory_allocated(self.torch_device) - before


def _where_and_what(exc: BaseException) -> str:
    place = traceback.extract_tb(exc.__traceback__)[-1]
    sentence = str(exc).partition("\n")[0]
    return f"{Path(place.filename).name}, line {place.lineno}: {sentence}"


class _CudaMoment:
    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def wait(self) -> None:
        self._event.synchronize()
