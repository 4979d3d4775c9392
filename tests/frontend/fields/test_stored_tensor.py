"""Tensors in bodies: what safetensors and torch.save write, and nothing that does anything."""

from __future__ import annotations

import io
import os
import pickle
import random
import zipfile
from typing import Any

import pytest
import torch
from safetensors.torch import save

from frontend.fields.stored_tensor import matrix_of_file, matrix_of_lists
from shared.errors import InvalidRequest
from shared.protocol.request import EmbedsDtype

pytestmark = pytest.mark.torch


def saved(thing: Any) -> bytes:
    file = io.BytesIO()
    torch.save(thing, file)
    return file.getvalue()


def complaint(data: bytes) -> str:
    with pytest.raises(InvalidRequest) as raised:
        matrix_of_file(data, "prompt_embeds")
    assert raised.value.param == "prompt_embeds"
    return str(raised.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_both_formats_hold_the_same(dtype: torch.dtype) -> None:
    whole = torch.randn(9, 7).to(dtype)
    rows = whole[2:7]  # whose storage is that of the whole
    data = rows.contiguous().view(torch.uint8).numpy().tobytes()
    for file in (saved(rows), saved(rows[None]), save({"x": rows.contiguous()})):
        matrix = matrix_of_file(file, "prompt_embeds")
        assert (matrix.num_rows, matrix.width, matrix.data) == (5, 7, data)
        assert matrix.dtype is EmbedsDtype(str(dtype).removeprefix("torch."))
    for number in (float("nan"), float("inf"), -float("inf")):
        bad = rows.clone()
        bad[3, 4] = number
        assert "not finite" in complaint(saved(bad))
        assert "not finite" in complaint(save({"x": bad}))


class Shell:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("exit 1",)


def hostile_archive() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Shell(), 2))
        archive.writestr("archive/data/0", b"\0" * 64)
    return file.getvalue()


def compressed_archive() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\0" * 1_000_000)
    return file.getvalue()


ROWS = torch.ones(3, 5)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (saved(ROWS.T), "is a view"),
        (saved(ROWS[0]), "the shape [5]"),
        (saved(ROWS.double()), "DoubleStorage"),
        (saved({"x": ROWS}), "no plain tensor"),
        (saved(torch.nn.Parameter(ROWS)), "no plain tensor"),
        (saved(ROWS[:0]), "the shape [0, 5]"),
        (save({"x": ROWS, "y": ROWS.clone()}), "holds 2 tensors"),
        (save({"x": ROWS.long()}), "'I64'"),
        (save({"x": ROWS})[:-4], "neither a file"),
        (pickle.dumps(ROWS.tolist()), "neither a file"),
        (b"", "neither a file"),
        (hostile_archive(), "no plain tensor"),
        (compressed_archive(), "not as torch.save writes"),
    ],
)
def test_what_is_no_matrix_is_refused_by_name(data: bytes, told: str) -> None:
    assert told in complaint(data)


def test_a_broken_file_is_a_refusal_whatever_is_broken() -> None:
    chance = random.Random(7)
    files = [saved(torch.randn(4, 6)), save({"x": torch.randn(4, 6)})]
    for idx in range(1000):
        data = bytearray(files[idx % 2])
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        if chance.random() < 0.2:
            del data[chance.randrange(len(data)) :]
        try:
            matrix = matrix_of_file(bytes(data), "prompt_embeds")
        except InvalidRequest:
            continue
        assert len(matrix.data) == matrix.num_rows * matrix.width * matrix.dtype.num_bytes


def test_lists_are_float32() -> None:
    matrix = matrix_of_lists([[1, 2.5], [0.1, -3e8]], "input_embeds")
    numbers = torch.frombuffer(bytearray(matrix.data), dtype=torch.float32)
    assert torch.equal(numbers, torch.tensor([1, 2.5, 0.1, -3e8]))
    for rows, told in (
        ([[1.0], [1.0, 2.0]], "equal length"),
        ([[1.0, "x"]], "numbers"),
        ([[1e39, 1.0]], "not finite"),
    ):
        with pytest.raises(InvalidRequest, match=told):
            matrix_of_lists(rows, "input_embeds")
