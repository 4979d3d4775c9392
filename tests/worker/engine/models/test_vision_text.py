"""Models that read images, served as what their text model is: beside transformers' own forward."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from shared.checkpoint.hearing_files import SOUND_FAMILIES
from shared.checkpoint.model_files import ModelFiles
from shared.checkpoint.tokenizer_bundle import TokenizerBundle
from shared.checkpoint.vision.vision_text import TEXT_ARCHITECTURES
from shared.errors import ConfigError
from tests.tiny_decoder import CONTEXT_LEN, VOCAB_SIZE
from tests.tiny_eyes import save_tiny_eyes
from tests.tiny_vision import READERS, save_tiny_reader
from tests.worker.engine.families import FUSED_IN_TORCH
from tests.worker.engine.tiny_models import Rig, random_prompt, save_tiny_model
from tests.worker.engine_fakes import make_add
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.registry import read_model_config

SHARED_KEYS = {
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 2,
}
PREFIXES_OF_HUBS = {
    "model.language_model.": "language_model.model.",
    "lm_head.": "language_model.lm_head.",
    "model.vision_tower.": "vision_tower.",
    "model.multi_modal_projector.": "multi_modal_projector.",
}


@pytest.mark.parametrize("name", READERS)
def test_its_text_has_the_logits_of_transformers(tmp_path: Path, name: str) -> None:
    path = save_tiny_reader(tmp_path, name)
    prompt = random_prompt(60, seed=3)
    rig = Rig(path, max_step_tokens=33)
    output = rig.run(make_add(1, prompt, max_tokens=8, ignore_eos=True))[1]
    theirs = reference(path, prompt + output)[59:67]
    ours = torch.stack([rig.logits[1, 60 + idx] for idx in range(8)])
    assert (ours - theirs).norm() / theirs.norm() < 1e-4


def test_all_kinds_are_tested(tmp_path: Path) -> None:
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as NAMES,
    )

    seeing = {NAMES[model_type] for model_type, _, _ in READERS.values()}
    others = SOUND_FAMILIES.keys() | {"Gemma3nForConditionalGeneration"}  # below
    assert seeing | others == TEXT_ARCHITECTURES.keys()


def test_the_text_of_gemma_3n_is_read_as_on_its_own(tmp_path: Path) -> None:
    """Its towers, which need a library that is not here, are not."""
    model_type, values = FUSED_IN_TORCH["gemma3n"]
    path = save_tiny_model(tmp_path, model_type, **values)
    add = make_add(1, random_prompt(20, seed=3), max_tokens=5, ignore_eos=True)
    alone = Rig(path).run(add)
    rename(path, {"model.": "model.language_model."})
    weights = load_file(path / "model.safetensors")
    for name in ("vision_tower.timm", "embed_vision", "audio_tower", "embed_audio"):
        weights[f"model.{name}.embedding.weight"] = torch.ones(2, 2)
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    text = json.loads((path / "config.json").read_text())
    whole = {"architectures": ["Gemma3nForConditionalGeneration"], "model_type": "gemma3n"}
    (path / "config.json").write_text(json.dumps(whole | {"text_config": text}))
    assert Rig(path).run(add) == alone


def test_its_card_tells_of_no_images(tmp_path: Path) -> None:
    path = save_tiny_reader(tmp_path, "gemma3")
    card = ModelFiles.read(path).card("m", TokenizerBundle.of_numbers(VOCAB_SIZE))
    assert (card.vision, card.can_generate) == (None, True)
    assert (card.max_context_len, card.vocab_size) == (CONTEXT_LEN, VOCAB_SIZE)


def test_what_gemma_leaves_to_its_class_is_known(tmp_path: Path) -> None:
    """As google/gemma-3-4b-it has it."""
    values = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "eos_token_id": [1, 106],
        "text_config": {
            "hidden_size": 64,
            "intermediate_size": 96,
            "model_type": "gemma3_text",
            "num_hidden_layers": 2,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        },
        "vision_config": {"model_type": "siglip_vision_model", "num_hidden_layers": 1},
    }
    (tmp_path / "config.json").write_text(json.dumps(values))
    files, model = ModelFiles.read(tmp_path), read_model_config(tmp_path)
    assert (files.vocab_size, files.max_context_len) == (262208, 131072)
    assert (model.vocab_size, model.max_context_len) == (262208, 131072)
    assert files.eos_token_ids == model.eos_token_ids == (1, 106)


def test_layers_of_gemma_4_have_the_shapes_of_their_types(tmp_path: Path) -> None:
    """As google/gemma-4-E2B-it has them: 15 of 35 layers keep something."""
    values = {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "model_type": "gemma4",
        "text_config": {
            "head_dim": 256,
            "global_head_dim": 512,
            "hidden_size": 1536,
            "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7,
            "model_type": "gemma4_text",
            "num_attention_heads": 8,
            "num_hidden_layers": 35,
            "num_key_value_heads": 1,
            "num_kv_shared_layers": 20,
            "rope_parameters": None,
            "use_double_wide_mlp": True,
        },
    }
    (tmp_path / "config.json").write_text(json.dumps(values))
    model = read_model_config(tmp_path)
    assert isinstance(model, DecoderConfig)
    layers = model.attention_layers
    assert [layer.head_dim for layer in layers] == [256, 256, 256, 256, 512] * 7
    assert [layer.kv_layer_id for layer in layers] == [None] * 15 + [13, 13, 13, 13, 14] * 4
    assert model.kv_bytes_per_token(torch.bfloat16) == 2 * 2 * (12 * 256 + 3 * 512)
    assert model.mlp_sizes == (9216,) * 15 + (18432,) * 20


@pytest.mark.parametrize("name", ["gemma3", "mistral3"])
def test_the_names_of_the_hub_are_read_as_well(tmp_path: Path, name: str) -> None:
    path = save_tiny_reader(tmp_path, name)
    add = make_add(1, random_prompt(20, seed=3), max_tokens=5, ignore_eos=True)
    here = Rig(path).run(add)
    rename(path, PREFIXES_OF_HUBS)
    assert Rig(path).run(add) == here


def test_keys_of_layers_that_see_those_of_others_are_not_read(tmp_path: Path) -> None:
    """As google/gemma-4-E2B-it has them."""
    path = save_tiny_reader(tmp_path, "gemma4", {"num_hidden_layers": 4, **SHARED_KEYS})
    add = make_add(1, random_prompt(20, seed=3), max_tokens=5, ignore_eos=True)
    here = Rig(path).run(add)
    weights = load_file(path / "model.safetensors")
    layer = "model.language_model.layers.2.self_attn."
    assert f"{layer}q_proj.weight" in weights
    for name in ("k_proj", "v_proj", "k_norm"):
        assert f"{layer}{name}.weight" not in weights
        weights[f"{layer}{name}.weight"] = torch.ones(2, 2)
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    assert Rig(path).run(add) == here


def test_a_head_that_is_stored_is_used_where_config_json_is_silent(tmp_path: Path) -> None:
    """As mistralai/Mistral-Small-3.1-24B has it."""
    path = save_tiny_reader(tmp_path, "mistral3", tie_word_embeddings=False)
    add = make_add(1, random_prompt(20, seed=3), max_tokens=5, ignore_eos=True)
    told = Rig(path).run(add)
    values = json.loads((path / "config.json").read_text())
    del values["tie_word_embeddings"], values["text_config"]["tie_word_embeddings"]
    (path / "config.json").write_text(json.dumps(values))
    assert Rig(path).run(add) == told


def test_a_tensor_of_neither_text_nor_tower_is_refused(tmp_path: Path) -> None:
    path = save_tiny_reader(tmp_path, "qwen3_vl")
    rename(path, {"model.visual.": "model.auditory."})
    with pytest.raises(ConfigError, match=r"has no place for: 'model\.auditory\."):
        Rig(path)


def test_layers_that_guess_are_not_read(tmp_path: Path) -> None:
    """As Qwen's own checkpoints have them."""
    path = save_tiny_reader(tmp_path, "qwen3_5")
    add = make_add(1, random_prompt(20, seed=3), max_tokens=5, ignore_eos=True)
    here = Rig(path).run(add)
    rename(path, {"model.visual.": "mtp.layers."})
    assert Rig(path).run(add) == here


def test_experts_that_lie_in_one_tensor_may_lie_in_several(tmp_path: Path) -> None:
    """As Qwen 3.5's checkpoints of 16 bits, and those of 8, have them."""
    path = save_tiny_reader(tmp_path, "qwen3_5_moe")
    add = make_add(1, random_prompt(20, seed=3), max_tokens=5, ignore_eos=True)
    here = Rig(path).run(add)
    weights = {}
    for name, tensor in load_file(path / "model.safetensors").items():
        experts, _, part = name.rpartition(".")
        if not experts.endswith(".mlp.experts"):
            weights[name] = tensor
            continue
        for idx, matrix in enumerate(tensor):
            parts = dict(zip(("gate_proj", "up_proj"), matrix.chunk(2), strict=True))
            for each, rows in (parts if part == "gate_up_proj" else {part: matrix}).items():
                weights[f"{experts}.{idx}.{each}.weight"] = rows.contiguous()
    assert "model.language_model.layers.1.mlp.experts.3.up_proj.weight" in weights
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    assert Rig(path).run(add) == here


def test_a_text_model_of_another_kind_is_named(tmp_path: Path) -> None:
    path = save_tiny_reader(tmp_path, "mistral3")
    values = json.loads((path / "config.json").read_text())
    values["text_config"]["model_type"] = "olmo2"
    (path / "config.json").write_text(json.dumps(values))
    with pytest.raises(ConfigError, match="text model of type 'olmo2' is not supported"):
        read_model_config(path)


def test_what_would_be_computed_wrongly_is_refused(tmp_path: Path) -> None:
    """Images without the axes of their positions."""
    path = save_tiny_eyes(tmp_path, "qwen3_vl_moe")
    values = json.loads((path / "config.json").read_text())
    del values["text_config"]["rope_parameters"]["mrope_section"]
    (path / "config.json").write_text(json.dumps(values))
    with pytest.raises(ConfigError, match="its rope has no 'mrope_section'"):
        read_model_config(path)


def reference(path: Path, token_ids: list[int]) -> torch.Tensor:
    """Of transformers, [num_tokens, vocab_size]."""
    from transformers import AutoModelForImageTextToText

    auto_model: Any = AutoModelForImageTextToText
    model = auto_model.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    if model.config.model_type == "llama4":  # the whole fails without images, in transformers 5.24
        model = model.language_model
    with torch.inference_mode():
        return torch.Tensor(model(input_ids=torch.tensor([token_ids])).logits[0])


def rename(path: Path, prefixes: dict[str, str]) -> None:
    """Other beginnings for the names of tensors."""
    weights = {}
    for name, tensor in load_file(path / "model.safetensors").items():
        begin = next((each for each in prefixes if name.startswith(each)), "")
        weights[prefixes.get(begin, "") + name.removeprefix(begin)] = tensor
    save_file(weights, path / "model.safetensors", {"format": "pt"})
