"""Damaged and hostile files of weights are refused by their heads, in a sentence and at once."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from shared.checkpoint.json_file import read_json
from shared.checkpoint.weights.safetensors_file import SafetensorsFile
from shared.checkpoint.weights.weight_files import check_weights
from shared.errors import ConfigError
from tests.e2e.role_stack import DEMO_MODEL

INDEX = "model.safetensors.index.json"
Head = dict[str, Any]


def entry(begin: int, end: int, shape: list[Any] | None = None, dtype: str = "F32") -> Head:
    """Of a tensor in `end - begin` bytes."""
    return {
        "dtype": dtype,
        "shape": [(end - begin) // 4] if shape is None else shape,
        "data_offsets": [begin, end],
    }


def write(path: Path, head: Head | bytes, num_bytes: int = 16, length: int | None = None) -> Path:
    raw = head if isinstance(head, bytes) else json.dumps(head).encode()
    told = len(raw) if length is None else length
    path.write_bytes(told.to_bytes(8, "little") + raw + bytes(num_bytes))
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


@pytest.fixture
def refused_in(file: Path) -> Callable[[], str]:
    """Says in what words; never slowly, and never at length."""

    def words() -> str:
        before = time.process_time()
        with pytest.raises(ConfigError) as caught:
            SafetensorsFile.read(file)
        assert time.process_time() - before < 1.0
        assert len(str(caught.value)) < 1000
        assert str(file) in str(caught.value)
        return str(caught.value)

    return words


def test_every_type_is_read_as_its_library_reads_it(file: Path) -> None:
    dtypes = ("bool", "u1", "i1", "u2", "i2", "f2", "u4", "i4", "f4", "u8", "i8", "f8", "c8")
    tensors: dict[str, np.ndarray[Any, Any]] = {name: np.zeros((2, 3), name) for name in dtypes}
    tensors |= {"none": np.zeros((0, 4)), "one": np.zeros(())}
    save_file(tensors, file, {"format": "pt"})
    ours = SafetensorsFile.read(file)
    assert ours.num_bytes == file.stat().st_size
    with safe_open(file, framework="numpy") as theirs:
        assert set(ours.tensors) == set(theirs.keys())
        for name, header in ours.tensors.items():
            part = theirs.get_slice(name)
            assert (header.dtype, list(header.shape)) == (part.get_dtype(), part.get_shape())
            assert header.num_bytes == tensors[name].nbytes


@pytest.mark.parametrize(
    ("head", "named"),
    [
        ({"a": entry(0, 16, dtype="F31")}, "tensor 'a' is of type 'F31', which is not known"),
        ({"a": entry(0, 16, [5])}, r"'a' has 16 bytes, which do not hold F32 of shape \(5,\)"),
        ({"a": entry(0, 16, [3], "F4")}, "do not hold F4"),
        ({"a": entry(0, 8), "b": entry(4, 16)}, "'b' begins at 4, .* one before it ends at 8"),
        ({"a": entry(0, 4), "b": entry(8, 16)}, "'b' begins at 8"),
        ({"a": entry(4, 16)}, "'a' begins at 4, .* ends at 0"),
        ({"a": entry(0, 16), "b": entry(16, 4, [3])}, "'b' has -12 bytes"),
        ({"a": entry(0, 32)}, "is cut: it has .* bytes, its head says"),
        ({"a": entry(0, 8)}, "has .* bytes, its head says"),
        ({"a": entry(0, 1 << 61)}, "is cut"),
        ({"a": entry(0, 16, [1 << 61, 1 << 61, 1 << 61])}, "do not hold"),
        ({"a": entry(0, 16, [1] * 65)}, r"'a' is not told rightly.*shape"),
        ({"a": entry(0, 16, [1 << 400])}, "'a' is not told rightly"),
        ({"a": entry(0, 16, [-4])}, "'a' is not told rightly.*shape"),
        ({"a": entry(-16, 0)}, "'a' is not told rightly.*data_offsets"),
        ({"a": entry(0, 16, ["4"])}, "'a' is not told rightly"),
        ({"a": {"dtype": "F32"}}, "'a' is not told rightly.*missing required field"),
        ({"a": 7}, "'a' is not told rightly"),
        ({"a" * 100_000: 7}, "'aaa"),
        ({"a": entry(0, 16, dtype="F" * 100_000)}, "is of type 'FFF"),
        (b"[" * 10_000_000, "its head"),
        (b'{"a":' * 1_000_000, "its head"),
        (b'{"a":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}", "its head"),
        (b'{"a":{"shape":' + b"[" * 100_000, "its head"),
        (b'{"a":{"shape":[' + b"9" * 1_000_000 + b"]}}", "its head|not told rightly"),
        (b"\xff\xfe", "its head"),
        (b"", "its head"),
        (b"[]", "its head"),
        (b"{", "its head"),
    ],
)
def test_a_head_that_cannot_be(
    file: Path, refused_in: Callable[[], str], head: Head | bytes, named: str
) -> None:
    write(file, head)
    assert re.search(named, refused_in())
    with pytest.raises(SafetensorError), safe_open(file, framework="numpy"):
        pass


@pytest.mark.parametrize("length", [17, 100_000, (100 << 20) + 1, 100 << 30, (1 << 64) - 1])
def test_a_head_longer_than_its_file(
    file: Path, refused_in: Callable[[], str], length: int
) -> None:
    write(file, b"{}", num_bytes=14, length=length)
    assert ("is cut" if length <= 100 << 20 else f"would have {length} bytes") in refused_in()


def test_a_file_that_is_cut_anywhere(file: Path, refused_in: Callable[[], str]) -> None:
    save_file({"a": np.ones(7, np.float32), "b": np.ones((3, 4), np.int8)}, file)
    whole = file.read_bytes()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        assert "is cut" in refused_in()


def test_noise_in_the_head_never_does_anything_else(file: Path) -> None:
    save_file({"a": np.ones(7, np.float32), "b": np.ones((3, 4), np.int8)}, file)
    whole, source = file.read_bytes(), random.Random(0)
    for _ in range(2000):
        noisy = bytearray(whole)
        for _ in range(source.randint(1, 4)):
            noisy[source.randrange(len(whole) - 40)] = source.randrange(256)
        file.write_bytes(noisy)
        try:
            SafetensorsFile.read(file)
        except ConfigError:
            continue
        with safe_open(file, framework="numpy") as theirs:  # what we believe, it reads
            assert theirs.keys()


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a\.safetensors is missing"):
        SafetensorsFile.read(tmp_path / "a.safetensors")
    (tmp_path / "b.safetensors").mkdir()
    os.mkfifo(tmp_path / "c.safetensors")
    (tmp_path / "d.safetensors").symlink_to("/dev/zero")
    for name in "bcd":
        file = tmp_path / f"{name}.safetensors"
        with pytest.raises(ConfigError, match=rf"{name}\.safetensors is no regular file"):
            SafetensorsFile.read(file)
        with pytest.raises(ConfigError, match=rf"{name}\.safetensors is no regular file"):
            read_json(file, dict)


def sharded(folder: Path, weight_map: object) -> Path:
    """Two files: one of `a`, one of `b`."""
    folder.mkdir()
    for name in "ab":
        save_file({name: np.ones(4, np.float32)}, folder / f"model-{name}.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    return folder


def test_the_files_of_an_index(tmp_path: Path) -> None:
    told = {name: f"model-{name}.safetensors" for name in "ab"}
    folder = sharded(tmp_path / "model", told)
    assert check_weights(folder) == (2, sum(each.stat().st_size for each in folder.glob("*-*")))
    (folder / "model-b.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"names model-b\.safetensors, which is missing; "):
        check_weights(folder)


@pytest.mark.parametrize(
    ("weight_map", "named"),
    [
        ({"a": "model-b.safetensors"}, "'a' is in model-b.safetensors, which has it not"),
        ({"a": "../a.safetensors"}, "in '../a.safetensors', which is no name"),
        ({"a": "/etc/passwd"}, "in '/etc/passwd', which is no name"),
        ({"a": "model.bin"}, "in 'model.bin', which is no name"),
        ({"a": 7}, "in 7, which is no name"),
        ({}, "has no weight_map"),
        ([], "has no weight_map"),
        (None, "has no weight_map"),
    ],
)
def test_an_index_that_says_what_is_not(tmp_path: Path, weight_map: object, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        check_weights(sharded(tmp_path / "model", weight_map))


def test_an_index_of_any_depth(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "model", {})
    (folder / INDEX).write_text('{"weight_map":' + "[" * 1_000_000)
    with pytest.raises(ConfigError, match=r"cannot read .*index\.json"):
        check_weights(folder)
    with (folder / INDEX).open("r+b") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(ConfigError, match="more than 104857600 are not read"):
        check_weights(folder)


def test_a_folder_without_weights_that_are_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there are no weights"):
        check_weights(tmp_path)
    shutil.copy(DEMO_MODEL / "model.safetensors", tmp_path / "other.safetensors")
    with pytest.raises(ConfigError, match=r"has no model\.safetensors"):
        check_weights(tmp_path)
