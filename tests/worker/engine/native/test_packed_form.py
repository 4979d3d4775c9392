"""Weights from their packed form on disk: the bits of those from the checkpoint, or not at all."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from shared.errors import ConfigError
from tests.gguf_files import matrices_as, stored_folder, write_gguf
from tests.worker.engine.families import MIXTURES
from tests.worker.engine.formats.quantized_copies import save_quantized
from tests.worker.engine.native.test_native import native_rig, needs_bfloat16, weights_of
from tests.worker.engine.tiny_models import Rig, random_prompt, save_tiny_model
from tests.worker.engine_fakes import make_add
from worker.engine.native.kernel_set import AVX512_BF16
from worker.engine.native.native_library import NativeLibrary

pytestmark = needs_bfloat16
SIZES: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "vocab_size": 320,
}


KINDS = ("gptq", "fp8 by tensor", "gguf", "16 bits", "mixture")


def packed_rig(path: Path, folder: Path, **config: Any) -> Rig:
    return native_rig(path, packed_weights="always", packed_folder=str(folder), **config)


def bits_of(rig: Rig) -> torch.Tensor:
    """Of the logits of a prompt and what follows it."""
    rig.run(make_add(1, random_prompt(9, seed=4), max_tokens=4, ignore_eos=True))
    return torch.stack([*rig.logits.values()])


def files_in(folder: Path) -> list[Path]:
    return sorted((folder / "packed").glob("*.packed"))


def make_checkpoint(kind: str, tmp_path: Path) -> Path:
    """With biases, or with norms of heads; tied, or not."""
    if kind == "gguf":
        path = save_tiny_model(tmp_path / "model", "llama", tie_word_embeddings=True, **SIZES)
        choose = matrices_as(gguf.GGMLQuantizationType.Q4_1)
        return stored_folder(write_gguf(path, tmp_path / "model.gguf", choose))
    if kind == "16 bits":
        return save_tiny_model(tmp_path / "model", "qwen3", **SIZES)
    if kind == "mixture":
        model_type, overrides = MIXTURES["gpt_oss"]
        return save_tiny_model(tmp_path / "model", model_type, **overrides)
    path = save_tiny_model(tmp_path / "model", "qwen2", **SIZES)
    return save_quantized(path, tmp_path / "quantized", kind)


@pytest.mark.parametrize(
    ("kind", "activations"),
    [(kind, "auto") for kind in KINDS] + [("gguf", "int8")],
)
def test_bits_are_the_same(kind: str, activations: str, tmp_path: Path) -> None:
    path, folder = make_checkpoint(kind, tmp_path), tmp_path / "cache"
    plain = native_rig(path, cpu_activations=activations)
    expected = bits_of(plain)
    assert torch.equal(bits_of(packed_rig(path, folder, cpu_activations=activations)), expected)
    (file,) = files_in(folder)
    built = file.stat().st_ino
    again = packed_rig(path, folder, cpu_activations=activations)
    assert torch.equal(bits_of(again), expected)
    assert [each.stat().st_ino for each in files_in(folder)] == [built], "it was built once"
    assert weights_of(again).coded_share == weights_of(plain).coded_share
    assert "packed form" in again.loop._ready.remark


def crc32c(data: bytes) -> int:
    """Bit by bit."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value


def test_the_checksum_is_crc_32c_of_each_quarter() -> None:
    library = NativeLibrary.load(AVX512_BF16)
    for size in (1, 7, 31, 32, 64, 1001):
        data = random.Random(size).randbytes(size)
        quarter = size // 32 * 8
        starts = [0, quarter, 2 * quarter, 3 * quarter]
        parts = [data[at : at + quarter] for at in starts[:3]] + [data[starts[3] :]]
        expected = b"".join(crc32c(part).to_bytes(4, "little") for part in parts)
        assert library.checksum(memoryview(data)) == expected


def test_damage_is_counted_and_other_settings_have_files_of_their_own(tmp_path: Path) -> None:
    path, folder = make_checkpoint("16 bits", tmp_path), tmp_path / "cache"
    expected = bits_of(packed_rig(path, folder))
    (file,) = files_in(folder)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 16
    file.write_bytes(data)
    (folder / "packed").chmod(0o755)
    refused = packed_rig(path, folder)
    assert "no packed form on disk" in refused.loop._ready.remark
    (folder / "packed").chmod(0o700)
    mended = packed_rig(path, folder)
    for rig in (refused, mended):
        assert rig.loop._ready.num_packed_failures == 1
        assert torch.equal(bits_of(rig), expected)
    coded = packed_rig(path, folder, quantization="int8")
    assert not torch.equal(bits_of(coded), expected)
    rounded = packed_rig(path, folder, quantization="int8", cpu_activations="int8")
    assert not torch.equal(bits_of(rounded), bits_of(coded))
    assert len(files_in(folder)) == 3
    assert not packed_rig(path, folder).loop._ready.num_packed_failures


def test_small_and_plain_weights_are_not_kept_unasked(tmp_path: Path) -> None:
    path, folder = make_checkpoint("gptq", tmp_path), tmp_path / "cache"
    native_rig(path, packed_weights="auto", packed_folder=str(folder))
    assert not folder.exists()


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"dtype": "float32", "cpu_kernels": "auto"}, "our C\\+\\+ alone has such a form"),
        ({"load_format": "dummy"}, "load_format=dummy"),
    ],
)
def test_where_there_is_none_it_is_refused(
    tmp_path: Path, config: dict[str, Any], reason: str
) -> None:
    path = make_checkpoint("16 bits", tmp_path)
    with pytest.raises(ConfigError, match=reason):
        packed_rig(path, tmp_path / "cache", **config)
