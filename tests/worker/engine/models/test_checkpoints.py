"""What we cannot serve is refused in a sentence that names it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from shared.errors import ConfigError
from tests.worker.engine.families import FUSED_IN_TORCH, LONGROPE, MIXTURES, YARN_ROPE
from tests.worker.engine.tiny_models import save_tiny_model
from tests.worker.engine_fakes import FakeChannel
from worker.engine.loading.engine_loader import EngineLoader
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.model_setup import choose_dtype
from worker.engine.models.registry import read_model_config
from worker.engine_link.engine_config import EngineConfig
from worker.engine_link.engine_messages import EngineLoading


@pytest.fixture
def checkpoint(tiny_llama: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(tiny_llama, tmp_path / "checkpoint"))


def change(path: Path, file_name: str = "config.json", **values: Any) -> None:
    file = path / file_name
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def load(path: Path, **config: Any) -> FakeChannel:
    channel = FakeChannel()
    defaults = {"num_threads": 1, "num_kv_tokens": 64}
    EngineLoader(EngineConfig(model_path=str(path), **(defaults | config)), channel).load()
    return channel


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"architectures": ["RwkvForCausalLM"]}, "RwkvForCausalLM is not supported: it has rec"),
        ({"architectures": ["PhimoeForCausalLM"]}, "PhimoeForCausalLM is not the text decoder of"),
        ({"architectures": None}, r"'architectures' must name one, not \[\]"),
        ({"hidden_act": "mish"}, "hidden_act='mish' is not supported"),
        ({"quantization_config": {"quant_method": "aqlm"}}, "quantised by aqlm are not supported"),
        ({"rope_parameters": {"rope_type": "longer"}}, "rope type 'longer'"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "'short_factor' must be positive"),
        ({"rope_parameters": LONGROPE | {"long_factor": [0]}}, r"must be positive .* not \[0\]"),
        ({"rope_parameters": LONGROPE | {"long_factor": [2]}}, "'long_factor' has 1 numbers for"),
        ({"num_key_value_heads": 4}, "6 heads do not share 4 KV heads"),
        ({"hidden_size": "big"}, "'hidden_size' must be a positive integer, not 'big'"),
        ({"max_position_embeddings": 1 << 40}, "is 1099511627776, more than any model has"),
        ({"vocab_size": None}, "'vocab_size'"),
        ({"intermediate_size": 101}, r"shape \(100, 48\), config.json says \(101, 48\)"),
        ({"num_hidden_layers": 3}, "no tensor 'model.layers.2"),
    ],
)
def test_a_configuration_that_we_do_not_compute(
    checkpoint: Path, values: dict[str, Any], sentence: str
) -> None:
    change(checkpoint, **values)
    with pytest.raises(ConfigError, match=sentence):
        load(checkpoint)


@pytest.mark.parametrize("family", ["gemma4", "olmo3 yarn", "mimo_v2_flash"])
def test_yarn_of_a_type_of_layers_that_is_not_to_truncate(tmp_path: Path, family: str) -> None:
    model_type, overrides = (FUSED_IN_TORCH | MIXTURES)[family]
    full = YARN_ROPE | {"truncate": True}
    ropes = {"full_attention": full, "sliding_attention": full}
    path = save_tiny_model(tmp_path, model_type, **overrides | {"rope_parameters": ropes})
    assert isinstance(read_model_config(path), DecoderConfig)
    change(path, rope_parameters=ropes | {"full_attention": full | {"truncate": False}})
    with pytest.raises(ConfigError, match="truncate=False is not supported"):
        read_model_config(path)


def test_files_that_cannot_be_read(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a folder"):
        load(tmp_path / "nowhere")
    weights = checkpoint / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ConfigError, match="is cut: it has 1000 bytes"):
        load(checkpoint)
    weights.unlink()
    with pytest.raises(ConfigError, match=r"has no model\.safetensors"):
        load(checkpoint)
    (checkpoint / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"index\.json"):
        load(checkpoint)
    (checkpoint / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="is not JSON"):
        load(checkpoint)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"max_context_len": 513}, "max_context_len=513 is more than the model's 512"),
        ({"num_kv_tokens": 3}, "does not hold one page of 16 tokens"),
        ({"max_step_tokens": 8}, "leaves no token for each of max_running=32"),
        ({"page_size": 0}, "page_size must be at least 1"),
    ],
)
def test_limits_that_make_no_sense(tiny_llama: Path, config: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load(tiny_llama, **config)


def test_loading_tells_how_far_it_is(tiny_llama: Path) -> None:
    told = [event for event in load(tiny_llama).events if isinstance(event, EngineLoading)]
    assert [event.phase for event in told[:3]] == [
        "read configuration",
        "prepare kernels",
        "load weights",
    ]
    weights = [event.progress for event in told if event.phase == "load weights"]
    assert weights == sorted(weights)
    assert weights[-1] == 1.0
    assert told[-1].phase == "warm up"


def test_end_tokens_of_generation_config_come_first(checkpoint: Path) -> None:
    change(checkpoint, eos_token_id=7)
    (checkpoint / "generation_config.json").write_text('{"eos_token_id": [3, 4]}')
    assert read_model_config(checkpoint).eos_token_ids == (3, 4)
    (checkpoint / "generation_config.json").write_text("{}")
    assert read_model_config(checkpoint).eos_token_ids == (7,)


def test_configurations_of_transformers_4(checkpoint: Path) -> None:
    file = checkpoint / "config.json"
    values = json.loads(file.read_text())
    del values["rope_parameters"]
    scaling = {"type": "linear", "factor": 2.0}
    file.write_text(json.dumps(values | {"rope_theta": 5000.0, "rope_scaling": scaling}))
    config = read_model_config(checkpoint)
    assert isinstance(config, DecoderConfig)
    rope = config.rope
    assert (rope.kind, rope.theta, rope.factor) == ("linear", 5000.0, 2.0)


def test_the_number_format_of_small_and_large_models(checkpoint: Path) -> None:
    change(checkpoint, dtype="bfloat16")
    small = read_model_config(checkpoint)
    assert choose_dtype("auto", small, is_fast=True) == torch.float32
    change(checkpoint, vocab_size=2**22)
    large = read_model_config(checkpoint)
    assert choose_dtype("auto", large, is_fast=False) == torch.float32
    assert choose_dtype("auto", large, is_fast=True) == torch.bfloat16
    assert choose_dtype("float32", large, is_fast=True) == torch.float32
