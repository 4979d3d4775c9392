"""Paged attention by flashinfer's fa2 and fa3 kernels, planned on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

import torch
from flashinfer.decode import BatchDecodeWithPagedKVCacheWrapper
from flashinfer.prefill import BatchPrefillWithPagedKVCacheWrapper

from worker.engine.cuda.attention.row_planner import RowPlanner
from worker.engine.cuda.batch.gpu_batch import GpuBatch, StepRows
from worker.engine.cuda.kv.gpu_kv_pool import GpuKVPool
from worker.engine.device.gpu_device import GpuDevice
from worker.engine.layers.attention_backend import AttentionLayer

INT_BYTES = 1 << 20  # for what each processor has to do
# Query heads to a KV head from which tensor cores are used: that kernel takes any number, the other
# one only some.
TENSOR_CORE_GROUP = 4


class LayerKind(NamedTuple):
    """An `AttentionLayer` without tensors, to be a key: layers that are alike share a plan."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None
    soft_cap: float | None

    @classmethod
    def of(cls, layer: AttentionLayer) -> Self:
        heads = (layer.num_heads, layer.num_kv_heads, layer.head_dim)
        return cls(*heads, layer.scale, layer.window, layer.soft_cap)

    @property
    def group(self) -> int:
        """Query heads to a KV head."""
        return self.num_heads // self.num_kv_heads


@dataclass(frozen=True, slots=True, eq=False)
class PagedLayers:
    """What flashinfer's wrappers of a model are made for: its layers, and where their keys are."""

    pool: GpuKVPool
    layers: Sequence[AttentionLayer]
    device: GpuDevice
    dtype: torch.dtype  # of queries and outputs
    floats: torch.Tensor  # [num_bytes] uint8, for what parts of a row leave to be merged

    def kinds(self) -> list[LayerKind]:
        """One for each layer."""
        return [LayerKind.of(layer) for layer in self.layers]

    def planner(self) -> RowPlanner:
        return RowPlanner(self.device, self.pool.page_size)

    def shape(self, kind: LayerKind) -> tuple[int, int, int, int]:
        """The positional arguments that the plans of all wrappers take behind the pages."""
        return kind.num_heads, kind.num_kv_heads, kind.head_dim, self.pool.page_size

    def plan_options(self, kind: LayerKind) -> dict[str, Any]:
        """Keywords that the plans of all wrappers take."""
        return {
            "sm_scale": kind.scale,
            "window_left": -1 if kind.window is None else kind.window - 1,
            "logits_soft_cap": kind.soft_cap,
            "q_data_type": self.dtype,
            "kv_data_type": self.pool.dtype,
        }


@dataclass(frozen=True, slots=True, eq=False)
class _GraphBuffers:
    """Where graphs find what was planned. Those of a graph are the front of a larger one's."""

    indptr: torch.Tensor  # [num_rows + 1] int32
    last_page_len: torch.Tensor  # [num_rows] int32
    pages: torch.Tensor  # [num_rows * max_pages] int32

    @classmethod
    def of(cls, num_rows: int, max_pages: int, device: torch.device) -> Self:
        sizes = (num_rows + 1, num_rows, num_rows * max_pages)
        return cls(*(torch.zeros(size, dtype=torch.int32, device=device) for size in sizes))


class FlashinferDecode:
    """Attends for rows that decode, by fa2. Each kind of layers has a wrapper for steps, and one
    for each size of a CUDA graph, since a graph keeps to the buffers that it was captured with.
    """

    def __init__(self, paged: PagedLayers) -> None:
        self._layers = paged
        self._pool = paged.pool
        self._device = paged.device.torch_device
        self._kinds = paged.kinds()
        self._ints = {
            kind: torch.empty(INT_BYTES, dtype=torch.uint8, device=self._device)
            for kind in self._kinds
        }
        self._planner = paged.planner()
        self._buffers = _GraphBuffers.of(0, 0, self._device)
        self._of_graphs: dict[int, dict[LayerKind, Any]] = {}
        self._of_steps = {kind: self._make_wrapper(kind, None) for kind in self._ints}
        self._planned = self._of_steps

    def plan(self, rows: StepRows) -> None:
        rows = rows.decoding
        if not rows.num_rows:
            return
        if rows.in_graph:
            self._planned, pages = self._of_graph(rows), self._buffers.pages
        else:
            self._planned, pages = self._of_steps, None
        with self._planner.planning(rows, pages) as (plan, pages):
            for kind, wrapper in self._planned.items():
                wrapper.plan(
                    plan.kv_indptr,
                    pages,
                    plan.last_page_len,
                    *self._layers.shape(kind),
                    seq_lens=plan.seq_lens,
                    **self._layers.plan_options(kind),
                )

    def attend(self, q: torch.Tensor, batch: GpuBatch, layer_id: int, output: torch.Tensor) -> None:
        own = slice(batch.num_decode)
        self._planned[self._kinds[layer_id]].run(
            q[own], self._pool.keys_and_values(layer_id), out=output[own]
        )

    def _of_graph(self, rows: StepRows) -> dict[LayerKind, Any]:
        """Graphs are captured from the largest on: its buffers are enough for all."""
        size = rows.num_rows
        if size not in self._of_graphs:
            if size > len(self._buffers.last_page_len):
                self._buffers = _GraphBuffers.of(size, rows.page_table.shape[1], self._device)
            self._of_graphs[size] = {kind: self._make_wrapper(kind, size) for kind in self._ints}
        return self._of_graphs[size]

    def _make_wrapper(self, kind: LayerKind, graph_size: int | None) -> Any:
        """Wrappers of a kind share the memory of their plans: a step uses one of them."""
        buffers: dict[str, torch.Tensor] = {}
        if graph_size is not None:
            buffers = {
                "paged_kv_indptr_buffer": self._buffers.indptr[: graph_size + 1],
                "paged_kv_indices_buffer": self._buffers.pages,
                "paged_kv_last_page_len_buffer": self._buffers.last_page_len[:graph_size],
            }
        wrapper = BatchDecodeWithPagedKVCacheWrapper(
            self._layers.floats,
            "NHD",
            use_cuda_graph=graph_size is not None,
            use_tensor_cores=kind.group >= TENSOR_CORE_GROUP,
            backend="fa2",
            **buffers,
        )
        wrapper.reset_workspace_buffer(self._layers.floats, self._ints[kind])
        return wrapper


class FlashinferExtend:
    """Attends for prefill, by fa2 or fa3, with a wrapper for each kind of layers.

    CUDA graphs cannot hold it: the plan decides on its grid.
    """

    def __init__(self, backend: Literal["fa2", "fa3"], paged: PagedLayers) -> None:
        self._layers = paged
        self._pool = paged.pool
        self._kinds = paged.kinds()
        self._planner = paged.planner()
        self._wrappers: dict[LayerKind, Any] = {
            kind: BatchPrefillWithPagedKVCacheWrapper(paged.floats, "NHD", backend=backend)
            for kind in dict.fromkeys(self._kinds)
        }

    def plan(self, rows: StepRows) -> None:
        rows = rows.extending
        if not rows.num_rows:
            return
        assert not rows.in_graph, "a CUDA graph cannot hold it"
        with self._planner.planning(rows) as (plan, pages):
            for kind, wrapper in self._wrappers.items():
                wrapper.plan(
                    plan.qo_indptr,
                    plan.kv_indptr,
                    pages,
                    plan.last_page_len,
                    *self._layers.shape(kind),
                    causal=True,
                    seq_lens=plan.seq_lens,
                    **self._layers.plan_options(kind),
                )

    def attend(self, q: torch.Tensor, batch: GpuBatch, layer_id: int, output: torch.Tensor) -> None:
        own = slice(batch.num_decode, None)
        self._wrappers[self._kinds[layer_id]].run(
            q[own], self._pool.keys_and_values(layer_id), out=output[own]
        )
