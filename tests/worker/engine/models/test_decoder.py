from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from shared.errors import ConfigError
from tests.tiny_decoder import CONTEXT_LEN
from tests.worker.engine.families import MINISTRAL_3_ROPE
from tests.worker.engine.tiny_models import (
    Rig,
    assert_like_reference,
    random_prompt,
    reference_logits,
    save_tiny_llama,
    save_tiny_model,
)
from tests.worker.engine_fakes import make_add
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.registry import read_model_config


def test_lengths_mixed_in_one_batch(tiny_llama: Path) -> None:
    rig = Rig(tiny_llama, max_step_tokens=48)
    prompts = {
        run_id: random_prompt(length, run_id)
        for run_id, length in enumerate([1, 2, 15, 16, 17, 31, 33, 48, 49, 130, 300])
    }
    outputs = rig.run(
        *(make_add(run_id, ids, max_tokens=9, ignore_eos=True) for run_id, ids in prompts.items())
    )
    for run_id, prompt in prompts.items():
        assert_like_reference(tiny_llama, rig, run_id, prompt + outputs[run_id])


@pytest.mark.parametrize("max_step_tokens", [16, 17, 63, 64, 200])
def test_chunk_borders(tiny_llama: Path, max_step_tokens: int) -> None:
    rig = Rig(tiny_llama, max_step_tokens=max_step_tokens)
    prompt = random_prompt(200, seed=3)
    output = rig.run(make_add(1, prompt, max_tokens=4, ignore_eos=True))[1]
    assert_like_reference(tiny_llama, rig, 1, prompt + output)


def test_a_prefix_hit(tiny_llama: Path) -> None:
    rig = Rig(tiny_llama)
    prompt = random_prompt(100, seed=4)
    rig.run(make_add(1, prompt, max_tokens=4))
    other = prompt[:90] + random_prompt(20, seed=5)
    output = rig.run(make_add(2, other, max_tokens=8, ignore_eos=True))[2]
    assert rig.channel.finishes()[2].num_cached_tokens == 80
    assert_like_reference(tiny_llama, rig, 2, other + output)


def test_shards(tiny_llama: Path, tmp_path: Path) -> None:
    path = save_tiny_llama(tmp_path, max_shard_size="50KB")
    assert len(list(path.glob("*.safetensors"))) > 2
    prompt = random_prompt(20, seed=6)
    whole, sharded = Rig(tiny_llama), Rig(path)
    add = make_add(1, prompt, max_tokens=5, ignore_eos=True)
    assert whole.run(add) == sharded.run(add)


def test_the_whole_context(tiny_llama: Path) -> None:
    rig = Rig(tiny_llama)
    prompt = random_prompt(CONTEXT_LEN - 6, seed=7)
    output = rig.run(make_add(1, prompt, max_tokens=100, ignore_eos=True))[1]
    assert len(output) == 6
    assert_like_reference(tiny_llama, rig, 1, prompt + output)


def test_bfloat16_is_close(tiny_llama: Path) -> None:
    rig = Rig(tiny_llama, dtype="bfloat16")
    prompt = random_prompt(150, seed=8)
    output = rig.run(make_add(1, prompt, max_tokens=16, ignore_eos=True))[1]
    reference = reference_logits(tiny_llama, prompt + output)
    ours = torch.stack([rig.logits[1, 150 + idx] for idx in range(16)])
    assert (ours - reference[149:165]).norm() / reference[149:165].norm() < 0.1


def test_dynamic_rope_is_made_for_the_longest_text(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
    path = save_tiny_model(tmp_path, "llama", max_position_embeddings=64, rope_parameters=rope)
    rig = Rig(path, max_context_len=256, max_step_tokens=100)
    prompt = random_prompt(240, seed=9)
    output = rig.run(make_add(1, prompt, max_tokens=100, ignore_eos=True))[1]
    assert len(prompt + output) == 256
    assert_like_reference(path, rig, 1, prompt + output)
    with pytest.raises(ConfigError, match="max_context_len=257 is more than the model's 256"):
        Rig(path, max_context_len=257)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"layer_types": ["full_attention"]}, "must say full_attention or sliding_attention"),
        ({"layer_types": [["full_attention"], "x"]}, "for each of 2 layers, not"),
        ({"layer_types": ["full_attention", "mamba"]}, "'mamba'"),
        ({"max_window_layers": -1}, "'max_window_layers' must be an integer of at least 0, not -1"),
        ({"sliding_window": "x"}, "'sliding_window' must be a positive integer, not 'x'"),
    ],
)
def test_windows_that_make_no_sense(tmp_path: Path, values: dict[str, Any], sentence: str) -> None:
    path = save_tiny_model(tmp_path, "qwen2")
    file = path / "config.json"
    changes = {"use_sliding_window": True, "layer_types": None} | values
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(ConfigError, match=sentence):
        read_model_config(path)


def test_a_window_from_a_layer_on(tmp_path: Path) -> None:
    path = save_tiny_model(tmp_path, "qwen2")
    file = path / "config.json"
    changes = {"use_sliding_window": True, "sliding_window": 9, "layer_types": None}
    for num_full, windows in ((0, [9, 9]), (1, [None, 9]), (2, [None, None])):
        changes |= {"max_window_layers": num_full}
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))
        assert [layer.window for layer in read_model_config(path).attention_layers] == windows


def test_yarn_beyond_the_length_of_config_json(tmp_path: Path) -> None:
    rope = {"rope_type": "yarn", "factor": 3.0, "original_max_position_embeddings": 100}
    path = save_tiny_model(tmp_path, "qwen2", max_position_embeddings=100, rope_parameters=rope)
    rig = Rig(path, max_context_len=300)
    prompt = random_prompt(290, seed=9)
    output = rig.run(make_add(1, prompt, max_tokens=10, ignore_eos=True))[1]
    assert_like_reference(path, rig, 1, prompt + output)
    with pytest.raises(ConfigError, match="max_context_len=301 is more than the model's 300"):
        Rig(path, max_context_len=301)


def test_queries_that_never_grow_are_no_obstacle(tmp_path: Path) -> None:
    """Ministral 3 is Llama within the length that it was trained for."""
    path = save_tiny_model(tmp_path, "ministral3", rope_parameters=MINISTRAL_3_ROPE)
    model = read_model_config(path)
    assert isinstance(model, DecoderConfig)
    assert (model.beyond_llama, model.within(20).beyond_llama) == ("its growth of queries", None)
    assert model.within(21) is model
    add = make_add(1, random_prompt(13, seed=1), max_tokens=7, ignore_eos=True)
    within, beyond = Rig(path, max_context_len=20), Rig(path)
    assert within.run(add) == beyond.run(add)
    for key, logits in within.logits.items():
        assert torch.equal(logits, beyond.logits[key])
