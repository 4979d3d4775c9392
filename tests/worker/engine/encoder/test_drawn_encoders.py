"""Encoders that nobody has written down: each drawn of what config.json may say of a family, whose
embeddings are those of transformers, or which is refused in a sentence.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from shared.errors import ConfigError
from tests.worker.engine.encoder.test_encoder_embeddings import (
    FAMILIES,
    encoded,
    hidden_states,
    save_tiny_embedder,
    write_modules,
)
from tests.worker.engine.encoder.test_encoder_scores import CONTEXT_LEN, Rig
from tests.worker.engine.models.test_drawn_configs import NOT_OF_MODELS
from tests.worker.engine.tiny_models import random_prompt
from tests.worker.engine_fakes import make_add
from worker.engine.models.transformers_config import MODEL_ERRORS

NUM_DRAWN, MAX_DRAWN = 6, 30  # of each family; more, where none of them is computed
KINDS = ["full_attention", "sliding_attention"]
SIZES: dict[str, list[Any]] = {
    "hidden_size": [16, 48],
    "num_attention_heads": [1, 2, 8],
    "num_hidden_layers": [1, 2, 4],
    "intermediate_size": [33, 40],
}
CHOICES: dict[str, list[Any]] = {
    "hidden_act": ["gelu", "relu", "silu", "gelu_new"],
    "hidden_activation": ["gelu", "relu", "silu", "gelu_pytorch_tanh"],
    "layer_norm_eps": [1e-2, 1e-7],
    "rms_norm_eps": [1e-2, 1e-7],
    "norm_eps": [1e-2, 1e-7],
    "local_attention": [2, 8, 64],
    "sliding_window": [2, 8, 64],
    "global_attn_every_n_layers": [1, 3, 5],
    "type_vocab_size": [1, 2, 4],
    "num_key_value_heads": [1, 4],
    "head_dim": [4, 12],
    "rope_parameters": [
        {"rope_type": "default", "rope_theta": 1e3},
        {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
        {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
    ],
}


def drawn_values(model_type: str, source: random.Random) -> dict[str, Any]:
    from transformers import AutoConfig

    known = AutoConfig.for_model(model_type).to_dict()
    choices = SIZES | {name: values for name, values in CHOICES.items() if name in known}
    for name, value in known.items():
        if isinstance(value, bool) and name not in NOT_OF_MODELS:
            choices[name] = [not value]
    if model_type == "gemma3_text":  # others are no encoders, or have ropes by layer
        del choices["use_bidirectional_attention"], choices["rope_parameters"]
    names = source.sample(sorted(choices), source.randint(1, 5))
    values = {name: source.choice(choices[name]) for name in names}
    if "layer_types" in known:
        values["layer_types"] = source.choices(KINDS, k=values.get("num_hidden_layers", 3))
    return values


@pytest.mark.nightly
@pytest.mark.parametrize("model_type", FAMILIES)
def test_drawn_encoders(model_type: str, tmp_path: Path) -> None:
    source, num_computed = random.Random(model_type), 0
    prompts = [random_prompt(length, length) for length in (1, 2, 31, 100, CONTEXT_LEN)]
    for number in range(MAX_DRAWN):
        if number >= NUM_DRAWN and num_computed:
            break
        values = drawn_values(model_type, source)
        print(number, values)
        try:
            path = save_tiny_embedder(tmp_path / str(number), model_type, **values)
            theirs = [hidden_states(path, prompt).mean(dim=0) for prompt in prompts]
        except MODEL_ERRORS as exc:
            print("transformers has no such model:", exc)
            continue
        write_modules(path, "mean_tokens")
        try:
            rig = Rig(path, max_step_tokens=64, num_kv_tokens=512)
        except ConfigError as exc:
            print("refused:", exc)
            continue
        rig.run(*(make_add(idx, each, pooling=encoded()) for idx, each in enumerate(prompts)))
        for idx, vector in enumerate(theirs):
            assert rig.vector(idx) == pytest.approx(vector.numpy(), rel=1e-4, abs=1e-5)
        num_computed += 1
    assert num_computed
