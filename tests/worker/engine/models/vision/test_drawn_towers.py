"""Towers and projectors that nobody has written down: each drawn of what config.json may say of
them, and computed as transformers computes it, alone as in chunks, or refused in a sentence.
"""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from shared.errors import ConfigError
from tests import tiny_eyes
from tests.tiny_eyes import ALL_EYES
from tests.tiny_vision import READERS
from tests.worker.engine.models.test_drawn_configs import NOT_OF_MODELS
from tests.worker.engine.models.vision.test_towers import MAX_ERROR, Seeing
from tests.worker.engine.tiny_models import Rig
from worker.engine.models.transformers_config import MODEL_ERRORS

NUM_DRAWN, MAX_DRAWN = 2, 10  # of each model; more, where none of them is computed
NO_MODEL = (*MODEL_ERRORS, ArithmeticError, AssertionError, NameError, TypeError)
TOWER_CHOICES: dict[str, list[Any]] = {
    "hidden_act": ["silu", "gelu", "gelu_pytorch_tanh", "quick_gelu", "relu"],
    "num_hidden_layers": [1, 3, 4],
    "depth": [1, 2, 4],
    "num_attention_heads": [1, 4],
    "num_heads": [1, 4],
    "intermediate_size": [24, 40],
    "deepstack_visual_indexes": [[0], [1], []],
    "fullatt_block_indexes": [[0], [0, 1, 2], []],
    "window_size": [8, 32],
    "layer_norm_eps": [1e-3],
    "rms_norm_eps": [1e-3],
}
CHOICES: dict[str, list[Any]] = {
    "vision_feature_layer": [-1, -2, 1],
    "vision_feature_select_strategy": ["default", "full"],
    "projector_hidden_act": ["gelu", "relu", "silu"],
    "multimodal_projector_bias": [True, False],
}
TEXT_CHOICES: dict[str, list[Any]] = {
    "rms_norm_eps": [1e-2],
    "tie_word_embeddings": [True, False],
    "num_key_value_heads": [1, 6],
    "intermediate_size": [40],
    "hidden_act": ["gelu"],
    "sliding_window": [7, None],
    "vocab_size": [320],
}


def chosen(source: random.Random, choices: dict[str, list[Any]], most: int) -> dict[str, Any]:
    names = source.sample(sorted(choices), min(len(choices), source.randint(0, most)))
    return {name: source.choice(choices[name]) for name in names}


def drawn_overrides(name: str, source: random.Random) -> dict[str, Any]:
    """Those of a model, with other values of its tower and of what is behind it."""
    from transformers import AutoConfig

    eyes = ALL_EYES[name]
    overrides = copy.deepcopy(eyes.overrides)
    model_type, tower = READERS[eyes.reader][0], overrides["vision_config"]
    known = AutoConfig.for_model(model_type, vision_config={**tower}).vision_config.to_dict()
    choices = {each: values for each, values in TOWER_CHOICES.items() if each in known}
    for each, value in known.items():
        if isinstance(value, bool) and each not in NOT_OF_MODELS:
            choices[each] = [not value]
    if model_type == "llama4":
        choices.pop("intermediate_size", None)  # that of what its pixels are shuffled to
    tower |= chosen(source, choices, 4)
    whole = AutoConfig.for_model(model_type).to_dict()
    of_whole = {each: values for each, values in CHOICES.items() if each in whole}
    return overrides | chosen(source, of_whole, 3)


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(ALL_EYES))
def test_drawn_towers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, original, num_computed = random.Random(name), ALL_EYES[name], 0
    for number in range(MAX_DRAWN):
        if number >= NUM_DRAWN and num_computed:
            break
        overrides, text = drawn_overrides(name, source), chosen(source, TEXT_CHOICES, 3)
        print(number, overrides, text)
        monkeypatch.setitem(tiny_eyes.ALL_EYES, name, original._replace(overrides=overrides))
        if not transformers_computes(tmp_path / f"theirs {number}", name, text):
            continue
        try:
            seeing = Seeing(tmp_path / str(number), name, **text)
            whole, cut = Rig(seeing.path), Rig(seeing.path, max_step_tokens=16)
        except ConfigError as exc:
            print("refused:", exc)
            continue
        adds = [seeing.add(run_id, parts) for run_id, parts in seeing.stories.items()]
        outputs = whole.run(*adds)
        for run_id, parts in seeing.stories.items():
            assert seeing.error(whole, run_id, parts, outputs[run_id]) < MAX_ERROR, run_id
        assert cut.run(*adds) == outputs
        assert all(torch.equal(logits, whole.logits[key]) for key, logits in cut.logits.items())
        num_computed += 1
    assert num_computed


def transformers_computes(path: Path, name: str, text: dict[str, Any]) -> bool:
    try:
        tiny_eyes.save_tiny_eyes(path, name, **text)
        reference = tiny_eyes.Reference(path, name)
        logits = reference.logits([3, 4, 5], [])
    except NO_MODEL as exc:
        print("transformers has no such model:", exc)
        return False
    return bool(logits.isfinite().all())
