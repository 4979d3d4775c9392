"""What does not fit into memory is refused before its weights are read, with the numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from shared.checkpoint.stored_format import MadeFormat
from shared.errors import ConfigError
from tests.gguf_files import matrices_as, stored_folder, write_gguf
from tests.worker.engine.models.test_checkpoints import load
from tests.worker.engine.native.test_native import native_rig, needs_bfloat16, weights_of
from tests.worker.engine.tiny_models import save_tiny_model
from worker.engine.loading import cpu_loader, memory_check
from worker.engine.models.registry import read_model_config
from worker.engine_link.engine_config import CpuKernelsName

LLAMA_8B = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "dtype": "bfloat16",
}


@pytest.mark.parametrize(
    ("model_type", "tied", "kernels", "weights"),
    [
        ("llama", False, "auto", "14.96 GiB"),
        ("llama", True, "torch", "14.96 GiB"),
        ("llama", True, "auto", "13.98 GiB"),
        ("olmo2", True, "auto", "13.98 GiB"),
    ],
)
def test_what_does_not_fit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    model_type: str,
    tied: bool,
    kernels: CpuKernelsName,
    weights: str,
) -> None:
    """Tied embeddings are kept once by our C++, and twice in torch."""
    path = save_tiny_model(tmp_path, model_type)
    (path / "model.safetensors").unlink()
    file = path / "config.json"
    changes = LLAMA_8B | {
        "tie_word_embeddings": tied,
        "max_position_embeddings": 8192,
        "layer_types": None,
    }
    if model_type == "olmo2":
        changes |= {"hidden_act": "quick_gelu"}  # so that transformers computes it
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    monkeypatch.setattr(memory_check, "available_memory_bytes", lambda: 13 << 30)
    is_native = model_type == "llama" and kernels == "auto"
    monkeypatch.setattr(cpu_loader, "may_choose_native", lambda *_: is_native)
    sentence = (
        rf"does not fit into memory: its [78]\.\d\d billion parameters take {weights} in bfloat16, "
        r"keys and values 0\.12 GiB \(1024 tokens\), and 13\.00 GiB are available"
    )
    with pytest.raises(ConfigError, match=sentence):
        load(path, dtype="bfloat16", num_kv_tokens=None, cpu_kernels=kernels)


def test_codes_are_counted_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where our C++ multiplies them: elsewhere they are made dense."""
    path = save_tiny_model(tmp_path, "llama")
    (path / "model.safetensors").unlink()
    file = path / "config.json"
    changes = LLAMA_8B | {"max_position_embeddings": 8192, "layer_types": None}
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    model = read_model_config(path, "int4")
    dense, codes = (
        memory_check.weight_bytes(model, torch.bfloat16, in_codes=in_codes)
        for in_codes in (False, True)
    )
    assert f"{dense / (1 << 30):.2f} {codes / (1 << 30):.2f}" == "14.96 5.02"
    monkeypatch.setattr(memory_check, "available_memory_bytes", lambda: 3 << 30)
    monkeypatch.setattr(cpu_loader, "may_choose_native", lambda *_: True)
    with pytest.raises(ConfigError, match=r"parameters take 5\.02 GiB, its projections in codes,"):
        load(path, dtype="bfloat16", num_kv_tokens=None, quantization="int4")


@needs_bfloat16
@pytest.mark.parametrize("kind", ["int8", "int4", "fp8"])
def test_what_is_counted_is_what_is_taken(tmp_path: Path, kind: MadeFormat) -> None:
    """But for norms, and for scales of whole rows."""
    sizes: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4}
    path = save_tiny_model(tmp_path, "llama", vocab_size=320, **sizes)
    rig = native_rig(path, quantization=kind)
    weights = weights_of(rig)
    counted = memory_check.weight_bytes(
        read_model_config(path, kind), torch.bfloat16, in_codes=True
    )
    assert counted == pytest.approx(weights.num_bytes, rel=0.02)


@needs_bfloat16
@pytest.mark.parametrize("is_tied", [False, True])
def test_codes_of_a_gguf_file_are_counted(tmp_path: Path, is_tied: bool) -> None:
    """Its embeddings and its head, too, which are one where they are tied."""
    sizes: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4}
    path = save_tiny_model(
        tmp_path / "model", "llama", vocab_size=320, tie_word_embeddings=is_tied, **sizes
    )
    choose = matrices_as(gguf.GGMLQuantizationType.Q4_1)
    folder = stored_folder(write_gguf(path, tmp_path / "model.gguf", choose))
    weights = weights_of(native_rig(folder))
    counted = memory_check.weight_bytes(read_model_config(folder), torch.bfloat16, in_codes=True)
    assert counted == pytest.approx(weights.num_bytes, rel=0.01)


@pytest.mark.parametrize(
    ("config", "fits"),
    [
        ({"num_kv_tokens": 1 << 20}, False),
        ({"kv_memory_bytes": 1 << 29, "num_kv_tokens": None}, False),
        ({"num_kv_tokens": 1 << 10}, True),
    ],
)
def test_the_wanted_kv_pool_counts(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], fits: bool
) -> None:
    monkeypatch.setattr(memory_check, "available_memory_bytes", lambda: 100 << 20)
    if fits:
        load(tiny_llama, **config)
        return
    with pytest.raises(ConfigError, match=r"and 0\.10 GiB are available"):
        load(tiny_llama, **config)
