"""Embeddings are read from packed weights, of every layout, as the numbers that they stand for."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker.engine.native.test_gguf_codes import read_random
from tests.worker.engine.native.test_native import native_rig, needs_bfloat16, weights_of
from tests.worker.engine.tiny_models import random_prompt, save_tiny_model
from tests.worker.engine_fakes import make_add
from worker.engine.formats.made_codes import make_codes
from worker.engine.formats.scaled_weight import ScaledWeight
from worker.engine.formats.stored.bit_packing import E2M1_BOOK
from worker.engine.formats.stored.gguf_blocks import BLOCK_TYPES
from worker.engine.models.decoder_weights import Projection
from worker.engine.native.kernel_set import NAMED_KERNEL_SETS, KernelSet
from worker.engine.native.native_choice import missing_capability
from worker.engine.native.native_library import (
    BatchStruct,
    NativeLibrary,
    NormStruct,
    ShapeStruct,
)
from worker.engine.native.packed_weights import PackedWeights

EPS = 1e-6
SETS = [each for each in NAMED_KERNEL_SETS if not missing_capability(each)]


class Table:
    """A decoder without layers: normed embeddings."""

    def __init__(self, weight: torch.Tensor | ScaledWeight, kernel_set: KernelSet) -> None:
        self.library = NativeLibrary.load(kernel_set)
        self.packed = PackedWeights(self.library)
        self.num_rows, self.hidden_size = weight.shape
        norm = torch.ones(self.hidden_size)
        self.shape = ShapeStruct(
            hidden_size=self.hidden_size,
            page_size=16,
            norm_eps=EPS,
            embedding_scale=1.0,
            embeddings=self.packed.linear(Projection(weight, None)),
            final_norm=NormStruct(self.packed.floats(norm)),
        )

    def all(self, scale: float = 1.0) -> torch.Tensor:
        self.shape.embedding_scale = scale
        decoder = self.library.decoder_new(ctypes.byref(self.shape), None, 0, 2)
        hidden = torch.empty(self.num_rows, self.hidden_size)
        ids = torch.arange(self.num_rows)
        query_lens, pages = torch.tensor([self.num_rows]).int(), torch.zeros(1, 8).int()
        out_loc = torch.zeros(self.num_rows).int()
        step = BatchStruct(
            num_tokens=self.num_rows,
            num_rows=1,
            max_pages=8,
            input_ids=ids.data_ptr(),
            positions=ids.data_ptr(),
            out_loc=out_loc.data_ptr(),
            query_lens=query_lens.data_ptr(),
            page_table=pages.data_ptr(),
            hidden=hidden.data_ptr(),
        )
        self.library.forward(decoder, ctypes.byref(step))
        self.library.decoder_free(decoder)
        return hidden


def assert_read_as_dense(codes: ScaledWeight) -> None:
    dense = codes.dense(torch.bfloat16)
    numbers = dense.float()
    normed = numbers * torch.rsqrt(numbers.square().mean(1, keepdim=True) + EPS)
    for kernel_set in SETS:
        expected = Table(dense, kernel_set).all()
        assert torch.allclose(expected, normed, rtol=1e-5, atol=1e-6)
        table = Table(codes, kernel_set)
        assert table.packed.num_coded == codes.codes.numel()
        assert torch.equal(table.all(), expected)


@needs_bfloat16
@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_every_type_of_gguf(kind: str, tmp_path: Path) -> None:
    codes, _ = read_random(kind, tmp_path / "model.gguf")
    assert_read_as_dense(codes)


@needs_bfloat16
@pytest.mark.parametrize("kind", ["int8", "int4", "fp8"])
def test_what_is_made_at_load(kind: str) -> None:
    """Four bits have zero points; the last group of columns and block of rows are partial."""
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(45, 192, generator=generator)
    assert_read_as_dense(make_codes(kind, weight))  # type: ignore[arg-type]


@needs_bfloat16
def test_a_book_and_lone_signs() -> None:
    generator = torch.Generator().manual_seed(2)
    codes = torch.randint(0, 16, (40, 64), generator=generator).to(torch.uint8)
    scales = torch.rand(40, 4, generator=generator)
    assert_read_as_dense(ScaledWeight(codes, scales, 1, 16, book=torch.tensor(E2M1_BOOK)))
    integers = torch.randint(-128, 128, (40, 64), generator=generator).to(torch.int8)
    integers[:, 0] = -128
    assert_read_as_dense(ScaledWeight(integers, scales, 1, 16))


@needs_bfloat16
def test_scaled_embeddings_are_rounded_as_torch_rounds_them() -> None:
    weight = torch.randn(40, 64, generator=torch.Generator().manual_seed(3)).to(torch.bfloat16)
    for kernel_set in SETS:
        scaled = Table(weight * 12.3, kernel_set).all()
        assert torch.equal(Table(weight, kernel_set).all(12.3), scaled)


@needs_bfloat16
def test_tied_embeddings_are_in_memory_once(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"hidden_size": 96, "intermediate_size": 128, "vocab_size": 3200}
    paths = [
        save_tiny_model(tmp_path / str(is_tied), "llama", tie_word_embeddings=is_tied, **sizes)
        for is_tied in (False, True)
    ]
    apart, tied = (native_rig(path) for path in paths)
    saved = weights_of(apart).num_bytes - weights_of(tied).num_bytes
    assert saved == 3200 * 96 * torch.bfloat16.itemsize
    assert len(tied.run(make_add(1, random_prompt(9, 1), max_tokens=8))[1]) == 8
