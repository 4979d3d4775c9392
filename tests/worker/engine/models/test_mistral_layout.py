"""Models in Mistral's own layout: the bits of the same models in Hugging Face's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from shared.checkpoint.model_files import ModelFiles
from shared.errors import ConfigError
from tests.mistral_files import read_folder, write_mistral
from tests.tiny_eyes import IMAGE_TOKEN_ID
from tests.worker.engine.families import MOE, WINDOW, YARN_ROPE
from tests.worker.engine.models.vision.test_towers import STORIES, Seeing
from tests.worker.engine.tiny_models import Logits, Rig, random_prompt, save_tiny_model
from tests.worker.engine_fakes import make_add
from worker.engine.models.transformers_config import read_transformers_config
from worker.engine.models.transformers_model import load_transformers_model

THETA = {"rope_parameters": {"rope_type": "default", "rope_theta": 5e4}}
YARN = {"factor": 4, "original_max_position_embeddings": 20, "beta": 16, "alpha": 2}
YARNED = YARN_ROPE | {
    "original_max_position_embeddings": 20,
    "beta_fast": 16.0,
    "beta_slow": 2.0,
    "attention_factor": 1.0,
}
# By name: model_type, what its config.json says, and what its params.json says.
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "mistral": ("mistral", THETA | {"sliding_window": None}, {"rope_theta": 5e4}),
    "tied, one window": (
        "mistral",
        THETA | {"sliding_window": WINDOW, "tie_word_embeddings": True},
        {"rope_theta": 5e4, "sliding_window": str(WINDOW)},
    ),
    "windows by layer": (
        "ministral",
        THETA | {"sliding_window": WINDOW, "layer_types": ["full_attention", "sliding_attention"]},
        {"rope_theta": 5e4, "sliding_window": [None, WINDOW], "_sliding_window": 7},
    ),
    "yarn": (
        "ministral3",
        {"rope_parameters": YARNED | {"llama_4_scaling_beta": 0.4}},
        {
            "rope_theta": 1e4,
            "yarn": YARN | {"apply_scale": False},
            "llama_4_scaling": {"original_max_position_embeddings": 20, "beta": 0.4},
        },
    ),
    "experts": (
        "mixtral",
        THETA | MOE | {"sliding_window": None},
        {
            "rope_theta": 5e4,
            "moe": {
                "num_experts": MOE.get("num_local_experts", MOE.get("num_experts")),
                "num_experts_per_tok": MOE["num_experts_per_tok"],
            },
        },
    ),
}


def logits_of(path: Path) -> tuple[list[int], Logits]:
    rig = Rig(path, max_step_tokens=24)
    output = rig.run(make_add(1, random_prompt(40, seed=1), max_tokens=6, ignore_eos=True))[1]
    return output, rig.logits


def assert_same_bits(path: Path, folder: Path) -> Path:
    """Returns the folder that is read."""
    made = read_folder(folder)
    theirs, ours = logits_of(path), logits_of(made)
    assert theirs[0] == ours[0]
    assert all(torch.equal(theirs[1][key], ours[1][key]) for key in theirs[1])
    return made


@pytest.mark.parametrize("name", MODELS)
def test_logits_have_the_bits_of_the_other_layout(tmp_path: Path, name: str) -> None:
    model_type, overrides, params = MODELS[name]
    path = save_tiny_model(tmp_path / "theirs", model_type, **overrides)
    folder = write_mistral(path, tmp_path / "ours", params, num_files=1 + (name == "experts"))
    made = assert_same_bits(path, folder)
    assert read_folder(folder) == made == read_folder(made)
    assert ModelFiles.read(made).max_context_len == 512


def test_a_projection_is_not_read_in_the_wrong_order(tmp_path: Path) -> None:
    """Which the comparison above would see."""
    path = save_tiny_model(tmp_path / "theirs", "mistral", **MODELS["mistral"][1])
    made = read_folder(write_mistral(path, tmp_path / "ours", MODELS["mistral"][2]))
    index = made / "model.safetensors.index.json"
    values = json.loads(index.read_text())
    del values["jetflock_paired_heads"]["model.layers.1.self_attn.k_proj.weight"]
    index.write_text(json.dumps(values))
    one, other = logits_of(path)[1], logits_of(made)[1]
    assert max(float((one[key] - other[key]).abs().max()) for key in one) > 1e-3


def test_transformers_is_given_the_same_weights(tmp_path: Path) -> None:
    """It would read names of its own from the files."""
    path = save_tiny_model(tmp_path / "theirs", "mistral", **MODELS["mistral"][1])
    folder = write_mistral(path, tmp_path / "ours", MODELS["mistral"][2])
    one, other = (parameters_of(each) for each in (path, read_folder(folder)))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def parameters_of(path: Path) -> dict[str, torch.Tensor]:
    config = read_transformers_config(path, "MistralForCausalLM", ())
    model = load_transformers_model(
        config, path, "safetensors", torch.float32, 64, lambda _: None, torch.device("cpu")
    )
    return dict(model._body.named_parameters())


def test_weights_in_eight_bits(tmp_path: Path) -> None:
    path = save_tiny_model(tmp_path / "theirs", "mistral", **MODELS["mistral"][1])
    weights = load_file(path / "model.safetensors")
    for name in [each for each in weights if "_proj.weight" in each]:
        scale = weights[name].abs().max() / 448
        weights[name] = (weights[name] / scale).to(torch.float8_e4m3fn)
        weights[f"{name}_scale_inv"] = scale.reshape(())
    save_file(weights, path / "model.safetensors")
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8"}
    (path / "config.json").write_text(json.dumps(config))
    quantization = {"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"}
    folder = write_mistral(
        path, tmp_path / "ours", {"rope_theta": 5e4, "quantization": quantization}
    )
    stored = load_file(folder / "consolidated.safetensors")
    stored["layers.0.attention.wq.qscale_act"] = torch.ones(())
    stored["layers.0.attention.kv_fake_quantizer.qscale_act"] = torch.ones(())
    save_file(stored, folder / "consolidated.safetensors")
    made = assert_same_bits(path, folder)
    assert ModelFiles.read(made)._format == "fp8"


def test_images(tmp_path: Path) -> None:
    seeing = Seeing(tmp_path / "theirs", "mistral3", rope_parameters=THETA["rope_parameters"])
    config = json.loads((seeing.path / "config.json").read_text())
    vision = config["vision_config"]
    vision["hidden_act"] = "silu"
    (seeing.path / "config.json").write_text(json.dumps(config))
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    encoder = {name: vision[name] for name in (*names, "num_channels", "image_size", "patch_size")}
    encoder |= {
        "rope_theta": 1e4,
        "max_image_size": 48,
        "spatial_merge_size": 2,
        "image_token_id": IMAGE_TOKEN_ID,
        "adapter_bias": False,
        "mm_projector_id": "patch_merge",
        "add_pre_mm_projector_layer_norm": True,
    }
    folder = write_mistral(
        seeing.path, tmp_path / "ours", {"rope_theta": 5e4, "vision_encoder": encoder}
    )
    theirs, ours = Rig(seeing.path), Rig(read_folder(folder))
    for rig in (theirs, ours):
        rig.run(seeing.add(1, STORIES[1]), seeing.add(5, STORIES[5]))
    assert all(torch.equal(theirs.logits[key], ours.logits[key]) for key in theirs.logits)
    assert theirs.channel.tokens() == ours.channel.tokens()


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"kv_lora_rank": 512}, "kv_lora_rank=512 is not supported: it attends over latents"),
        ({"quantization_config": {"x": "y" * 999}}, r"quantization_config=\{'x': 'y{93} is not"),
        ({"moe": {"num_experts": 8, "num_experts_per_tok": 2, "x": 1}}, "moe: x=1 is not supp"),
        ({"dim": "big"}, "'dim' must be a positive integer, not 'big'"),
        ({"sliding_window": [None, 3, 4]}, r"sliding_window=\[None, 3, 4\] is not supported"),
        ({"quantization": {"qformat_weight": "nvfp4"}}, "qformat_weight='nvfp4' is not supp"),
        ({"model_type": "mamba"}, "model_type='mamba' is not supported"),
        ({"vision_encoder": 7}, "'vision_encoder' must be an object, not 7"),
    ],
)
def test_what_is_not_known_is_refused_by_name(
    tmp_path: Path, params: dict[str, Any], sentence: str
) -> None:
    path = save_tiny_model(tmp_path / "theirs", "mistral", **MODELS["mistral"][1])
    folder = write_mistral(path, tmp_path / "ours", params)
    with pytest.raises(ConfigError, match=sentence):
        read_folder(folder)


def test_a_tensor_that_is_not_known_and_weights_that_are_not_there(tmp_path: Path) -> None:
    path = save_tiny_model(tmp_path / "theirs", "mistral", **MODELS["mistral"][1])
    folder = write_mistral(path, tmp_path / "ours", {}, num_files=2)
    file = folder / "consolidated-00001-of-00002.safetensors"
    stored = load_file(file)
    file.unlink()
    with pytest.raises(ConfigError, match=r"index\.json names consolidated-00001.* is missing"):
        read_folder(folder)
    (folder / "consolidated.safetensors.index.json").unlink()
    (folder / "consolidated-00002-of-00002.safetensors").unlink()
    assert not ModelFiles.read(read_folder(folder)).num_weight_bytes
    save_file(
        stored | {"layers.0.extra.weight": torch.ones(1)}, folder / "consolidated.safetensors"
    )
    with pytest.raises(ConfigError, match=r"has a tensor 'layers\.0\.extra\.weight', not known"):
        read_folder(folder)


def test_a_folder_in_both_layouts_is_read_in_hugging_faces(tmp_path: Path) -> None:
    path = save_tiny_model(tmp_path / "theirs", "mistral", **MODELS["mistral"][1])
    (path / "params.json").write_text("{}")
    (path / "consolidated.safetensors").write_bytes(b"")
    assert read_folder(path) == path


def test_weights_that_may_run_code_are_refused(tmp_path: Path) -> None:
    (tmp_path / "params.json").write_text("{}")
    (tmp_path / "consolidated.00.pth").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"has its weights as \*\.pth, which may run code"):
        read_folder(tmp_path)
