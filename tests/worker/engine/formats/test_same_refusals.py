"""What a worker refuses by the heads of weights is refused before anything starts, and alike."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from shared.checkpoint.formats.served_weights import check_served_weights, decoder_shapes
from shared.errors import ConfigError
from tests.worker.engine.formats.quantized_copies import (
    change_config,
    change_tensors,
    save_quantized,
)
from tests.worker.engine.formats.stored_kinds import KINDS
from tests.worker.engine.tiny_models import save_tiny_model
from worker.engine.layers.checked_linears import choose_linears
from worker.engine.models.decoder import DecoderModel
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.layer_ops import TorchLayerOps
from worker.engine.models.layer_ropes import LayerRopes
from worker.engine.models.model_loading import load_model
from worker.engine.models.registry import read_model_config

MODULE = "model.layers.0.self_attn.o_proj"
SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
ONE_LAYER = SIZES | {"num_hidden_layers": 1, "vocab_size": 256}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("source") / "model", "llama", **ONE_LAYER)


def refused_before(path: Path) -> str:
    """The sentence; empty where it is taken."""
    try:
        check_served_weights(path)
    except ConfigError as exc:
        return str(exc)
    return ""


def refused_by_worker(path: Path) -> str:
    try:
        config = read_model_config(path)
        load_model(config, path, "safetensors", torch.float32, 64, lambda _share: None)
    except ConfigError as exc:
        return str(exc)
    return ""


def changes(tensor: torch.Tensor) -> Iterator[torch.Tensor | None]:
    """Of its shape and type: no value means nothing."""
    yield None
    yield torch.ones((*tensor.shape, 1)).to(tensor.dtype)
    yield torch.ones([2 * size for size in tensor.shape]).to(tensor.dtype)
    yield torch.ones(tuple(tensor.shape)[::-1]).to(tensor.dtype)
    yield torch.ones(tensor.shape, dtype=torch.int16)


@pytest.mark.parametrize("kind", KINDS)
def test_both_refuse_the_same_heads(kind: str, source: Path, tmp_path: Path) -> None:
    path = save_quantized(source, tmp_path / "model", kind)
    assert refused_before(path) == refused_by_worker(path) == ""
    stored = load_file(path / "model.safetensors")
    sentences = []
    for name, tensor in stored.items():
        if not name.startswith(MODULE) or "quant_state" in name:
            continue
        for changed in changes(tensor):
            if changed is not None and changed.shape == tensor.shape == ():
                continue
            change_tensors(path, **{name.replace(".", "__"): changed})
            sentences.append(refused_before(path))
            assert sentences[-1] == refused_by_worker(path), (name, changed)
        change_tensors(path, **{name.replace(".", "__"): tensor})
    assert sum(map(bool, sentences)) > len(sentences) / 2


@pytest.mark.parametrize("key", ["group_size", "bits"])
def test_both_refuse_the_same_words(key: str, source: Path, tmp_path: Path) -> None:
    path = save_quantized(source, tmp_path / "model", "gptq")
    for value in (0, -1, 2, 3, 8, 32, 128, "4", None):
        change_config(path, quantization_config=KINDS["gptq"].section | {key: value})
        assert refused_before(path) == refused_by_worker(path)


@pytest.mark.parametrize("key", [*ONE_LAYER, "head_dim", "num_key_value_heads"])
def test_both_refuse_the_same_sizes(key: str, source: Path, tmp_path: Path) -> None:
    path = save_quantized(source, tmp_path / "model", "packed int4")
    config = json.loads((path / "config.json").read_text())
    change_config(path, **{key: 2 * (config.get(key) or 16)})
    sentence = refused_before(path)
    assert "config.json says" in sentence or "has no tensor" in sentence
    assert sentence == refused_by_worker(path)


class Shapes:
    """A `WeightReader` of zeros that notes what it is asked for."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[int, ...]] = {}

    def has(self, name: str) -> bool:
        return False

    def read(self, name: str, *shape: int) -> torch.Tensor:
        return self.read_as(torch.float32, name, *shape)

    def read_as(self, dtype: torch.dtype, name: str, *shape: int) -> torch.Tensor:
        self.found[name] = shape
        return torch.zeros(shape, dtype=dtype)


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_shapes_are_those_that_the_engine_reads(
    family: str, has_bias: bool, is_tied: bool, tmp_path: Path
) -> None:
    biases = {"attention_bias": has_bias, "mlp_bias": has_bias} if family != "mistral" else {}
    path = save_tiny_model(
        tmp_path / "model", family, **SIZES, num_key_value_heads=2, tie_word_embeddings=is_tied
    )
    change_config(path, **biases)
    config = read_model_config(path)
    assert isinstance(config, DecoderConfig)
    reader = Shapes()
    ropes = LayerRopes.of(config, 64, torch.float32)
    ops = TorchLayerOps(ropes, config.attention_layers, choose_linears(torch.float32))
    DecoderModel(config, reader, ops)
    told = decoder_shapes(json.loads((path / "config.json").read_text()))
    assert list(told) == list(reader.found.items())


def test_an_architecture_that_is_no_name(source: Path, tmp_path: Path) -> None:
    """The heads are checked as those of any model, and the worker has a sentence for it."""
    path = save_quantized(source, tmp_path / "model", "nf4")
    change_config(path, architectures=[["LlamaForCausalLM"]])
    assert refused_before(path) == ""
    assert "is not the text decoder of model_type 'llama'" in refused_by_worker(path)
