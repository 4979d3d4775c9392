"""What is cut, foreign or from the future is refused in a sentence; nothing else can happen."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from shared.errors import ConfigError
from shared.gguf.gguf_file import GgufFile
from shared.gguf.gguf_model import GgufModel
from shared.gguf.tensor_types import MIXTURES, TENSOR_TYPES


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """With a value of every kind, and two tensors."""
    found = tmp_path / "model.gguf"
    writer: Any = gguf.GGUFWriter(str(found), "llama")
    for name in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"):
        getattr(writer, f"add_{name}")(f"number.{name}", 7)
    writer.add_float32("number.float32", 0.5)
    writer.add_float64("number.float64", 0.1)
    writer.add_bool("flag", True)
    writer.add_string("text", "größer")
    writer.add_array("texts", ["a", "", "ß"])
    writer.add_array("numbers", [1, 2, 3])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_K_M)
    writer.add_tensor("norm", np.ones(4, np.float32))
    blocks = gguf.quantize(np.ones((3, 64), np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("matrix", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return found


def test_values_and_tensors_are_read(path: Path) -> None:
    file = GgufFile.read(path)
    numbers = {key: value for key, value in file.metadata.items() if key.startswith("number.")}
    assert set(numbers.values()) == {7, 0.5, 0.1}
    assert len(numbers) == 10
    assert (file.metadata["flag"], file.metadata["text"]) == (True, "größer")
    assert (file.metadata["texts"], file.metadata["numbers"]) == (["a", "", "ß"], [1, 2, 3])
    assert [(each.name, each.shape, each.type.name) for each in file.tensors] == [
        ("norm", (4,), "F32"),
        ("matrix", (3, 64), "Q8_0"),
    ]
    model = GgufModel.read(path)
    assert model.format == "GGUF Q4_K_M"
    assert model.bits_per_weight == 8 * (16 + 6 * 34) / (4 + 192)


def test_the_types_are_those_of_gguf_py() -> None:
    sizes = {kind.name: size for kind, size in gguf.GGML_QUANT_SIZES.items()}
    for number, kind in TENSOR_TYPES.items():
        assert gguf.GGMLQuantizationType(number).name == kind.name
        assert sizes[kind.name] == (kind.block_size, kind.block_bytes)
    missing = []
    for quantised in gguf.GGMLQuantizationType:
        block = np.zeros((1, gguf.GGML_QUANT_SIZES[quantised][1]), np.uint8)
        try:
            gguf.dequantize(block, quantised)
        except NotImplementedError:
            missing.append(quantised)
    assert set(TENSOR_TYPES) == set(gguf.GGMLQuantizationType) - set(missing)
    for number, name in MIXTURES.items():
        assert gguf.LlamaFileType(number).name.removeprefix("MOSTLY_").removeprefix("ALL_") == name


def test_every_cut_file_is_refused(path: Path) -> None:
    data = path.read_bytes()
    for length in range(0, len(data) - 40, 7):
        path.write_bytes(data[:length])
        with pytest.raises(ConfigError, match=r"is cut|no GGUF file"):
            GgufFile.read(path)


def test_noise_in_the_head_never_does_anything_else(path: Path) -> None:
    data = path.read_bytes()
    source = random.Random(0)
    for _ in range(3000):
        noisy = bytearray(data)
        for _ in range(source.randint(1, 4)):
            noisy[source.randrange(4, 600)] = source.choice(
                [0, 1, 0x7F, 0xFF, source.randrange(256)]
            )
        path.write_bytes(noisy)
        try:
            GgufFile.read(path)
        except ConfigError:
            continue


@pytest.mark.parametrize(
    ("version", "sentence"),
    [
        (1, "of GGUF version 1; versions 2 and 3 are read"),
        (4, "of GGUF version 4"),
        (3 << 24, "big-endian"),
    ],
)
def test_other_versions_are_refused(path: Path, version: int, sentence: str) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:4] + struct.pack("<I", version) + data[8:])
    with pytest.raises(ConfigError, match=sentence):
        GgufFile.read(path)


def test_unknown_types_are_refused(path: Path) -> None:
    data = path.read_bytes()
    where = data.index(b"matrix") + len(b"matrix") + 4 + 2 * 8
    path.write_bytes(data[:where] + struct.pack("<I", 97) + data[where + 4 :])
    with pytest.raises(ConfigError, match="tensor 'matrix' is of type 97, which is not known"):
        GgufFile.read(path)
    where = data.index(b"text\x08") + 4
    path.write_bytes(data[:where] + struct.pack("<I", 55) + data[where + 4 :])
    with pytest.raises(ConfigError, match="a value of type 55"):
        GgufFile.read(path)


def test_tensors_that_overlap_are_refused(path: Path) -> None:
    data = path.read_bytes()
    where = data.index(b"matrix") + len(b"matrix") + 4 + 2 * 8 + 4
    path.write_bytes(data[:where] + struct.pack("<Q", 0) + data[where + 8 :])
    with pytest.raises(ConfigError, match=r"is damaged: tensor 'matrix' begins at .*'norm'"):
        GgufFile.read(path)


def test_a_key_that_stands_twice_is_refused(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"number.int32", b"number.int16"))
    with pytest.raises(ConfigError, match=r"tells 'number\.int16' twice"):
        GgufFile.read(path)


@pytest.mark.parametrize(
    ("key", "value", "num_bytes"),
    [
        (b"numbers\x09", struct.pack("<IQ", 0, 40_000_000), 40_000_000),
        (b"numbers\x09", struct.pack("<IQQ", 8, 1, 300 << 20), 300 << 20),
        (b"text\x08", struct.pack("<Q", 300 << 20), 300 << 20),
    ],
    ids=["a list", "a text in a list", "a text"],
)
def test_a_head_of_more_than_any_model_has_is_refused(
    path: Path, key: bytes, value: bytes, num_bytes: int
) -> None:
    """A byte in the file may be many times that in memory."""
    data = path.read_bytes()
    where = data.index(key) + len(key) + 3
    path.write_bytes(data[:where] + value)
    with path.open("r+b") as file:
        file.truncate(where + len(value) + num_bytes)  # with no blocks on the disk
    with pytest.raises(ConfigError, match="has more than 256 MiB of texts and lists in its head"):
        GgufFile.read(path)


def test_a_long_name_is_told_by_its_length(path: Path) -> None:
    data = path.read_bytes()
    where = data.index(b"matrix")
    path.write_bytes(data[: where - 8] + struct.pack("<Q", 300) + b"m" * 294 + data[where:])
    with pytest.raises(ConfigError, match="is damaged: a tensor's name has 300 letters"):
        GgufFile.read(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    for content in (b"", b"GG", b"PK\x03\x04 something else", b"\x80" * 100):
        (tmp_path / "x.gguf").write_bytes(content)
        with pytest.raises(ConfigError, match="is no GGUF file"):
            GgufFile.read(tmp_path / "x.gguf")
    with pytest.raises(ConfigError, match="cannot read"):
        GgufFile.read(tmp_path / "nowhere.gguf")
