"""Every family through the whole engine, with transformers' own forward beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from shared.checkpoint.recurrent_text import keeps_states
from shared.errors import ConfigError
from tests.worker.engine.families import (
    FUSED,
    FUSED_IN_TORCH,
    GENERAL,
    LATENT,
    MIXTURES,
    RECURRENT,
    by_day,
)
from tests.worker.engine.loop.test_invariance import KINDS_OF_LAYERS
from tests.worker.engine.tiny_models import (
    Rig,
    assert_like_reference,
    random_prompt,
    reference_logits,
    save_tiny_model,
)
from tests.worker.engine_fakes import make_add
from worker.engine.cpu.model_runner import TorchForward
from worker.engine.models.decoder import DecoderModel
from worker.engine.models.families.minimax import MAKERS_NAMES

BFLOAT16_FACTOR = 1.5
BFLOAT16_ERROR = 0.3  # with experts: a router's near tie may fall to the other side

FAMILIES = FUSED | FUSED_IN_TORCH | MIXTURES | RECURRENT | LATENT | GENERAL


# What rounds is one code for all that have a kind of layer; the others run by night.
MADE_OF_OTHERS = {"zamba2"}  # of layers that round likewise
OF_KINDS = by_day(FAMILIES, {"llama", "qwen3", "granite", *KINDS_OF_LAYERS} - MADE_OF_OTHERS)


@pytest.fixture(scope="module")
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model_type, overrides = FAMILIES[request.param]
    return save_tiny_model(tmp_path_factory.mktemp("model"), model_type, **overrides)


@pytest.mark.parametrize("path", FAMILIES, indirect=True, scope="module")
def test_float32_gives_the_logits_of_transformers(path: Path) -> None:
    """Prompts and 8 decoded tokens, one past the 128 of a stretched rope; mixed lengths, chunk
    borders, prefix hits, retractions.
    """
    rig = Rig(path, max_step_tokens=33, num_kv_tokens=176, max_running=8)
    shared = random_prompt(40, seed=2)
    prompts = {1: shared + random_prompt(5, seed=3)}
    prompts |= {run_id: random_prompt(length, run_id) for run_id, length in ((2, 1), (3, 33))}
    prompts |= {4: shared + random_prompt(38, seed=4), 5: shared + random_prompt(85, seed=5)}
    outputs = rig.run(
        *(make_add(run_id, ids, max_tokens=8, ignore_eos=True) for run_id, ids in prompts.items())
    )
    for run_id, prompt in prompts.items():
        assert len(outputs[run_id]) == 8
        assert_like_reference(path, rig, run_id, prompt + outputs[run_id])
    assert rig.channel.steps[-1].load.num_preemptions > 0
    assert rig.channel.steps[-1].load.num_prefix_hits > 0
    assert any(len({end - start for _, start, end in batch}) > 1 for batch in rig.runner.batches)


@pytest.mark.parametrize("path", OF_KINDS, indirect=True, scope="module")
def test_bfloat16_is_no_farther_from_float32_than_that_of_transformers(path: Path) -> None:
    rig = Rig(path, dtype="bfloat16")
    prompt = random_prompt(60, seed=8)
    output = rig.run(make_add(1, prompt, max_tokens=8, ignore_eos=True))[1]
    exact = reference_logits(path, prompt + output)[59:67]
    theirs = reference_logits(path, prompt + output, torch.bfloat16)[59:67]
    ours = torch.stack([rig.logits[1, 60 + idx] for idx in range(8)])
    error, their_error = ((each - exact).norm() / exact.norm() for each in (ours, theirs))
    assert error < BFLOAT16_FACTOR * their_error
    assert error < BFLOAT16_ERROR


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("ernie4_5_moe", "model.mtp_block.0."),
        ("exaone_moe", "mtp.layers.0."),
        ("mimo_v2_flash", "model.mtp.layers.0."),
        ("nemotron_h", "mtp.layers.0."),
    ],
)
def test_layers_that_guess_are_not_read(name: str, layer: str, tmp_path: Path) -> None:
    """As published checkpoints have them, where nobody uses them."""
    model_type, overrides = FAMILIES[name]
    file = save_tiny_model(tmp_path, model_type, **overrides) / "model.safetensors"
    weights = load_file(file)
    save_file(weights | {f"{layer}norm.weight": torch.ones(9)}, file, {"format": "pt"})
    assert len(Rig(tmp_path).run(make_add(1, [5, 6], max_tokens=2, ignore_eos=True))[1]) == 2


def test_minimax_may_be_told_in_its_makers_words(tmp_path: Path) -> None:
    path = save_tiny_model(tmp_path, "minimax", **FAMILIES["minimax"][1])
    add = make_add(1, random_prompt(40, seed=8), max_tokens=4, ignore_eos=True)
    told = Rig(path)
    told.run(add)
    config = path / "config.json"
    values = json.loads(config.read_text())
    values |= {"architectures": ["MiniMaxM1ForCausalLM"], "model_type": "minimax_m1"}
    values["auto_map"] = {"AutoConfig": "configuration_minimax_m1.MiniMaxM1Config"}
    values["attn_type_list"] = [int(each == "full_attention") for each in values.pop("layer_types")]
    for ours, theirs in MAKERS_NAMES.items():
        values[theirs] = values.pop(ours)
    config.write_text(json.dumps(values | {"postnorm": True, "shared_intermediate_size": 0}))
    makers = Rig(path)
    makers.run(add)
    assert all(torch.equal(makers.logits[key], told.logits[key]) for key in told.logits)
    assert keeps_states(json.loads(config.read_text()))
    config.write_text(json.dumps(values | {"postnorm": False}))
    with pytest.raises(ConfigError, match="postnorm=False is not supported"):
        Rig(path)


def test_gemma_scales_embeddings_as_it_was_trained(tmp_path: Path) -> None:
    """By a factor in the dtype of its weights."""
    path = save_tiny_model(tmp_path, "gemma2", hidden_size=48, head_dim=8)
    for dtype, factor in (("float32", 48**0.5), ("bfloat16", 6.9375)):
        forward = Rig(path, dtype=dtype).runner._forward._forward
        assert isinstance(forward, TorchForward)
        decoder = forward._model
        assert isinstance(decoder, DecoderModel)
        assert decoder._entry is not None
        assert decoder._entry._embedding_scale == pytest.approx(factor, rel=1e-6)
