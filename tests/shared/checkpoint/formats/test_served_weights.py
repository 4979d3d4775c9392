"""Weights that are quantised by an unknown tool, or without a word, are refused by their heads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from shared.checkpoint.formats.quantization_files import read_quantization
from shared.checkpoint.formats.served_weights import check_served_weights
from shared.errors import ConfigError
from tests.e2e.role_stack import DEMO_MODEL

CODES = "model.layers.0.mlp.up_proj.weight"


def folder_of(path: Path, config: dict[str, Any], **tensors: np.ndarray[Any, Any]) -> Path:
    """Names have `__` in place of dots."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    found = {name.replace("__", "."): tensor for name, tensor in tensors.items()}
    save_file(found, path / "model.safetensors")
    return path


def codes() -> dict[str, np.ndarray[Any, Any]]:
    return {CODES.replace(".", "__"): np.zeros((4, 4), np.int8)}


def test_a_plain_checkpoint() -> None:
    check_served_weights(DEMO_MODEL)


def test_masks_and_counters_are_no_codes(tmp_path: Path) -> None:
    path = folder_of(
        tmp_path / "model", {}, a__bias=np.zeros(4, np.uint8), a__position_ids=np.zeros(4, np.int64)
    )
    check_served_weights(path)


def test_codes_without_a_word(tmp_path: Path) -> None:
    path = folder_of(tmp_path / "model", {}, **codes())
    with pytest.raises(ConfigError, match=f"stores '{CODES}' as I8, and its files name no quan"):
        check_served_weights(path)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"quantization_config": {"quant_method": "gptq"}}, "missing required field `bits`"),
        ({"compression_config": {"format": "x"}}, "missing required field `config_groups`"),
        (
            {"text_config": {"quantization_config": {"quant_method": "fp8"}}},
            "none of its tensors is$",
        ),
        (
            {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}},
            "has no 'model.layers.0.mlp.up_proj.SCB'",
        ),
    ],
)
def test_codes_that_are_not_as_their_tool_says(
    tmp_path: Path, config: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_served_weights(folder_of(tmp_path / "model", config, **codes()))


def test_modelopt_tells_it_beside(tmp_path: Path) -> None:
    path = folder_of(tmp_path / "model", {}, **codes())
    beside = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}
    (path / "hf_quant_config.json").write_text(json.dumps(beside))
    with pytest.raises(ConfigError, match="is quantised"):
        check_served_weights(path)


def test_shapes_that_config_json_does_not_tell(tmp_path: Path) -> None:
    shutil.copytree(DEMO_MODEL, tmp_path / "model")
    config = json.loads((DEMO_MODEL / "config.json").read_text())
    heads = {"num_key_value_heads": 2 * config["num_key_value_heads"]}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config | heads))
    with pytest.raises(ConfigError, match=r"^'model.layers.0.self_attn.k_proj.weight' has shape"):
        check_served_weights(tmp_path / "model")


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"quantization_config": {"quant_method": "aqlm"}}, "quantised by aqlm are not supported"),
        ({"quantization_config": {"quant_method": ["x"]}}, "only by auto-round, intel"),
        ({"quantization_config": {}}, "by an unnamed method are not supported"),
        ({"quantization_config": "int8"}, "'quantization_config' must be an object, not 'int8'"),
        ({"text_config": {"quantization_config": 4}}, "must be an object, not 4"),
        ({"quantization": {"bits": 4}}, "as MLX stores them are not supported; take the original"),
    ],
)
def test_tools_that_we_do_not_know(tmp_path: Path, config: dict[str, Any], sentence: str) -> None:
    path = folder_of(tmp_path / "model", config, **codes())
    with pytest.raises(ConfigError, match=sentence):
        check_served_weights(path)


def test_codes_of_a_tower_that_is_not_read(tmp_path: Path) -> None:
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": {"model_type": "gemma3_text"},
    }
    tower = {"vision_tower__weight": np.zeros(4, np.int8)}
    check_served_weights(folder_of(tmp_path / "model", config, **tower))
    text = {"language_model__lm_head__weights": np.zeros(4, np.int8)}
    with pytest.raises(ConfigError, match=r"stores 'lm_head\.weights' as I8"):
        check_served_weights(folder_of(tmp_path / "text", config, **text))


def test_damage_is_told_first(tmp_path: Path) -> None:
    shutil.copytree(DEMO_MODEL, tmp_path / "model")
    with (tmp_path / "model" / "model.safetensors").open("r+b") as file:
        file.truncate(7)
    with pytest.raises(ConfigError, match="is cut: it has 7 bytes"):
        check_served_weights(tmp_path / "model")


@pytest.mark.parametrize(
    ("section", "named"),
    [
        (
            {
                "quant_method": "gptq",
                "bits": 4,
                "group_size": 128,
                "dynamic": {"-:.*attn": {}, "lm_head": True, r"+:.*\.down": {"bits": 8}},
            },
            {"x.down_proj": "int8 in groups of 128", "x.up_proj": "int4 in groups of 128"},
        ),
        (
            {
                "quant_method": "modelopt",
                "quant_algo": "MIXED_PRECISION",
                "quantized_layers": {
                    "x.up_proj": {"quant_algo": "NVFP4", "group_size": 16},
                    "x.down_proj": {"quant_algo": "FP8"},
                },
            },
            {"x.down_proj": "fp8 by tensor", "x.up_proj": "nvfp4", "x.attn": None},
        ),
        (
            {
                "format": "mixed-precision",
                "quant_method": "compressed-tensors",
                "quantization_status": "frozen",
                "config_groups": {
                    "a": {
                        "targets": ["re:.*down_proj"],
                        "weights": {"strategy": "channel"},
                        "format": "int-quantized",
                    },
                    "b": {
                        "targets": ["Linear"],
                        "weights": {"num_bits": 4, "group_size": 32},
                        "format": "pack-quantized",
                    },
                },
            },
            {"x.down_proj": "int8 by channel", "x.up_proj": "int4 in groups of 32"},
        ),
    ],
)
def test_modules_have_formats_of_their_own(
    section: dict[str, Any], named: dict[str, str | None], tmp_path: Path
) -> None:
    path = folder_of(tmp_path / "model", {"quantization_config": section}, **codes())
    quantization = read_quantization(path)
    assert quantization is not None
    for module, name in named.items():
        formats = [each.name for each in quantization.formats_of(module)]
        assert formats == ([] if name is None else [name])
    if quantization.method == "gptq":
        with pytest.raises(ConfigError, match=r"'x\.attn' is quantised, and gptq"):
            quantization.formats_of("x.attn")
