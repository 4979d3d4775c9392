"""What is asked of a trial, and what it answers: between two processes, and on disk."""

from __future__ import annotations

from typing import Self

import msgspec
import torch

from worker.engine.cuda.attention.attention_task import AttentionTask, KernelName, PartName
from worker.engine.device.dtype_name import dtype_name
from worker.engine.layers.attention_backend import AttentionLayer
from worker.engine.request.step_limits import StepLimits


class LayerShape(msgspec.Struct, frozen=True):
    """An `AttentionLayer` without its weights."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None
    soft_cap: float | None
    has_sinks: bool
    kv_layer_id: int | None
    chunk: int | None

    @classmethod
    def of(cls, layer: AttentionLayer) -> Self:
        return cls(
            layer.num_heads,
            layer.num_kv_heads,
            layer.head_dim,
            layer.scale,
            layer.window,
            layer.soft_cap,
            layer.sinks is not None,
            layer.kv_layer_id,
            layer.chunk,
        )

    def layer(self) -> AttentionLayer:
        """Its sinks are zeros."""
        return AttentionLayer(
            self.num_heads,
            self.num_kv_heads,
            self.head_dim,
            self.scale,
            self.window,
            self.soft_cap,
            torch.zeros(self.num_heads) if self.has_sinks else None,
            kv_layer_id=self.kv_layer_id,
            chunk=self.chunk,
        )


class AttentionPlace(msgspec.Struct, frozen=True):
    """What a model asks of its attention kernels."""

    layers: tuple[LayerShape, ...]
    dtype: str
    kv_dtype: str
    page_size: int
    capability: tuple[int, int]
    max_running: int
    max_step_tokens: int

    @classmethod
    def of(cls, task: AttentionTask, step: StepLimits) -> Self:
        return cls(
            tuple(map(LayerShape.of, task.layers)),
            dtype_name(task.dtype),
            dtype_name(task.kv_dtype),
            task.page_size,
            task.capability,
            step.max_running,
            step.max_step_tokens,
        )

    def task(self) -> AttentionTask:
        return AttentionTask(
            [shape.layer() for shape in self.layers],
            dtype_of(self.dtype),
            dtype_of(self.kv_dtype),
            self.page_size,
            self.capability,
        )

    def step(self) -> StepLimits:
        return StepLimits(self.max_running, self.max_step_tokens, has_overlap=True)


class AttentionQuestion(msgspec.Struct, frozen=True, tag="attention"):
    """How long a kernel takes in a model's steps: `Took`."""

    place: AttentionPlace
    part: PartName
    kernel: KernelName
    compares: bool  # its results with those of our own kernel


class TilesQuestion(msgspec.Struct, frozen=True, tag="tiles"):
    """Asks by which of our tiles a product of few rows is faster than the library's: `Found`."""

    num_outputs: int
    width: int
    num_layers: int  # that have such a weight
    num_rows: int
    dtype: str


class Took(msgspec.Struct, frozen=True, tag="took"):
    """A step, with its plan, by all layers."""

    seconds: float


class Found(msgspec.Struct, frozen=True, tag="found"):
    """As `SkinnyTiles`. None: the library is the fastest."""

    tiles: tuple[int, int, int] | None


class Unavailable(msgspec.Struct, frozen=True, tag="unavailable"):
    """It cannot be used here."""

    reason: str
    is_lasting: bool = False  # another trial on this machine would say the same
    is_fatal: bool = False  # the process that tried it can try nothing more


Question = AttentionQuestion | TilesQuestion
Answer = Took | Found | Unavailable


def dtype_of(name: str) -> torch.dtype:
    """That torch calls so."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype
