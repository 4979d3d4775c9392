"""Models of transformers: which are taken, which are refused, and in which words."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from shared.checkpoint.vision.vision_text import TEXT_ARCHITECTURES
from shared.errors import ConfigError
from tests.worker.engine.families import FUSED, FUSED_IN_TORCH, GENERAL, LATENT, MIXTURES, RECURRENT
from tests.worker.engine.tiny_models import (
    Rig,
    assert_like_reference,
    random_prompt,
    save_tiny_model,
)
from tests.worker.engine_fakes import make_add
from worker.engine.models import transformers_config
from worker.engine.models.registry import FUSED_ARCHITECTURES, read_model_config
from worker.engine.models.transformers_architectures import TESTED_ARCHITECTURES
from worker.engine.models.transformers_config import TransformersConfig, read_transformers_config

DOCS = Path(__file__).parents[4] / "docs" / "models.md"


def save_config(path: Path, model_type: str, architecture: str, **values: Any) -> Path:
    from transformers import AutoConfig

    config = AutoConfig.for_model(model_type, **values)
    config.architectures = [architecture]
    config.save_pretrained(path)
    return path


def architectures_of(families: dict[str, tuple[str, dict[str, Any]]]) -> set[str]:
    from transformers.models.auto import modeling_auto as auto

    # transformers has Mistral 4's text among models that see images.
    names = dict(auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
    names |= auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return {names[model_type] for model_type, _ in families.values()}


def test_the_documents_list_what_the_tests_prove() -> None:
    assert architectures_of(GENERAL) == TESTED_ARCHITECTURES
    decoders = set(FUSED_ARCHITECTURES) - set(TEXT_ARCHITECTURES)  # test_towers.py has the others
    assert architectures_of(FUSED | FUSED_IN_TORCH | MIXTURES | RECURRENT | LATENT) == decoders
    fused, general = DOCS.read_text().split("## Every decoder")[0].split("## Through transformers")
    names = re.compile(r"`(\w+(?:ForCausalLM|LMHeadModel))`")
    assert set(names.findall(fused)) == decoders
    assert set(names.findall(general)) == TESTED_ARCHITECTURES


@pytest.mark.parametrize(
    ("model_type", "architecture", "values", "sentence"),
    [
        ("rwkv", "RwkvForCausalLM", {}, "recurrent or convolutional layers"),
        ("falcon", "FalconForCausalLM", {"alibi": True}, "alibi=True is not supported"),
        ("gptj", "GPTJForCausalLM", {"rotary_dim": 300}, "must be a share of a head"),
        ("mpt", "MptForCausalLM", {}, "computed in its own code"),
        ("musicgen", "MusicgenForCausalLM", {}, "reads or writes sound"),
        (
            "granitemoehybrid",
            "GraniteMoeHybridForCausalLM",
            {
                "num_local_experts": 4,
                "num_experts_per_tok": 5,
                "layer_types": ["full_attention"] * 32,
            },
            "5 experts cannot be chosen of 4",
        ),
        (
            "falcon_h1",
            "FalconH1ForCausalLM",
            {"mlp_multipliers": [1.0, 0.0]},
            r"'mlp_multipliers' must be 2 positive numbers, not \[1.0, 0.0\]",
        ),
        (
            "nemotron_h",
            "NemotronHForCausalLM",
            {"layers_block_type": ["full_attention", "mlp"]},
            "no layer is recurrent",
        ),
        (
            "minimax",
            "MiniMaxForCausalLM",
            {"rotary_dim": 256},
            "rotary_dim=256 of a head's 128 values",
        ),
        ("nemotron_h", "NemotronHForCausalLM", {"mlp_bias": True}, "mlp_bias=True is not supp"),
        (
            "qwen3_next",
            "Qwen3NextForCausalLM",
            {"mlp_only_layers": [48]},
            r"'mlp_only_layers' must name some of 48 layers, not \[48\]",
        ),
        *(
            (model_type, architecture, {"hidden_act": "gelu"}, "hidden_act='gelu' is not supp")
            for model_type, architecture in (
                ("aria_text", "AriaTextForCausalLM"),
                ("kimi_linear", "KimiLinearForCausalLM"),
                ("mamba", "MambaForCausalLM"),
                ("minimax", "MiniMaxForCausalLM"),
            )
        ),
        ("longcat_flash", "LongcatFlashForCausalLM", {}, "made of a latent in a way of its own"),
        ("deepseek_v4", "DeepseekV4ForCausalLM", {}, "blocks, chunks or selected positions"),
        ("aria", "AriaForConditionalGeneration", {}, "has a vision_config: only text"),
        ("t5", "T5ForConditionalGeneration", {}, "has an encoder: only decoders"),
        ("bert", "BertForMaskedLM", {"num_hidden_layers": 1}, "BertForMaskedLM is not the text"),
        ("bloom", "BloomForCausalLM", {}, "computed in its own code"),
        ("bart", "BartForCausalLM", {}, "it is an encoder, or has one"),
    ],
)
def test_what_is_refused(
    tmp_path: Path, model_type: str, architecture: str, values: dict[str, Any], sentence: str
) -> None:
    path = save_config(tmp_path, model_type, architecture, **values)
    with pytest.raises(ConfigError, match=sentence):
        read_model_config(path)


def test_values_larger_than_keys(tmp_path: Path) -> None:
    sizes = {"num_hidden_layers": 1, "v_head_dim": 512}
    path = save_config(tmp_path, "glm4_moe_lite", "Glm4MoeLiteForCausalLM", **sizes)
    with pytest.raises(ConfigError, match=r"keys of \d+ and values of"):
        read_transformers_config(path, "Glm4MoeLiteForCausalLM", ())


def test_a_model_that_keeps_keywords_to_itself(tmp_path: Path) -> None:
    path = save_config(tmp_path, "stablelm", "StableLmForCausalLM", num_hidden_layers=1)
    with pytest.raises(ConfigError, match="does not pass keywords on"):
        read_transformers_config(path, "StableLmForCausalLM", ())


@pytest.mark.parametrize(
    ("model_type", "values"),
    [
        ("smollm3", {"pad_token_id": 2, "hidden_act": "quick_gelu"}),
        ("opt", {"ffn_dim": 64, "word_embed_proj_dim": 32, "do_layer_norm_before": False}),
        ("gpt_neox", {}),  # its heads are rotated as if they were wider
    ],
)
def test_what_the_fused_decoder_does_not_know_goes_to_transformers(
    tmp_path: Path, model_type: str, values: dict[str, Any]
) -> None:
    path = save_tiny_model(tmp_path, model_type, **values)
    assert isinstance(read_model_config(path), TransformersConfig)


def test_a_value_of_the_wrong_type_is_named(tmp_path: Path) -> None:
    path = save_config(tmp_path, "olmo2", "Olmo2ForCausalLM")
    values = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(values | {"hidden_size": "wide"}))
    with pytest.raises(ConfigError, match="hidden_size"):
        read_model_config(path)


def test_a_padding_token_is_not_looked_for(tmp_path: Path) -> None:
    path = save_tiny_model(tmp_path, "gpt2", pad_token_id=2, activation_function="quick_gelu")
    rig = Rig(path)
    output = rig.run(make_add(1, [2, 5, 2], max_tokens=5, ignore_eos=True))[1]
    assert_like_reference(path, rig, 1, [2, 5, 2, *output])


def test_code_that_comes_with_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    values = {"model_type": "mine", "architectures": ["Mine"], "auto_map": {"AutoConfig": "m.Mine"}}
    (tmp_path / "config.json").write_text(json.dumps(values))
    (tmp_path / "m.py").write_text("raise SystemExit('it was run')")
    with pytest.raises(ConfigError, match="is not a model that transformers knows"):
        read_model_config(tmp_path)


def test_an_untested_family_is_taken_with_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = save_tiny_model(tmp_path, "phimoe")
    with caplog.at_level(logging.WARNING):
        read_model_config(path)
    assert caplog.messages == []
    monkeypatch.setattr(transformers_config, "TESTED_ARCHITECTURES", frozenset())
    with caplog.at_level(logging.WARNING):
        read_model_config(path)
    assert caplog.messages == [
        "untested family: no test compares PhimoeForCausalLM with transformers"
    ]


def test_positions_that_are_not_heeded(tmp_path: Path) -> None:
    path = save_tiny_model(tmp_path, "smollm3", pad_token_id=2, no_rope_layers=[0, 0])
    with pytest.raises(ConfigError, match="no heed of the positions"):
        Rig(path)


def test_a_checkpoint_that_lacks_a_tensor(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = save_tiny_model(tmp_path, "olmo2")
    weights = load_file(path / "model.safetensors")
    del weights["model.layers.1.self_attn.q_norm.weight"]
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match=r"has no tensor 'model\.layers\.1\.self_attn\.q_norm"):
        Rig(path)


def test_shards_give_the_same_tokens(tmp_path: Path) -> None:
    whole = save_tiny_model(tmp_path / "whole", "phimoe", num_local_experts=4)
    sharded = save_tiny_model(
        tmp_path / "sharded", "phimoe", max_shard_size="100KB", num_local_experts=4
    )
    assert len(list(sharded.glob("*.safetensors"))) > 2
    add = make_add(1, random_prompt(20, seed=6), max_tokens=5, ignore_eos=True)
    assert Rig(whole).run(add) == Rig(sharded).run(add)
