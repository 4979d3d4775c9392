"""Configurations that nobody has written down: each drawn of what config.json may say of a family,
computed as transformers computes it, and alone as in company, or refused in a sentence.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from shared.errors import ConfigError
from tests.tiny_decoder import VOCAB_SIZE
from tests.worker.engine.families import FUSED, FUSED_IN_TORCH, LATENT, MIXTURES, RECURRENT, WINDOW
from tests.worker.engine.native.test_native import needs_bfloat16, with_whole_heads
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
from worker.engine.models.transformers_config import MODEL_ERRORS
from worker.engine_link.engine_messages import AddRequest

FAMILIES = FUSED | FUSED_IN_TORCH | MIXTURES | RECURRENT | LATENT
TYPES = sorted({model_type for model_type, _ in FAMILIES.values()})
NATIVE_TYPES = sorted(
    {model_type for model_type, _ in (FUSED | FUSED_IN_TORCH | MIXTURES).values()}
    - {"gemma3n_text", "mimo_v2_flash"}
)
NUM_DRAWN, MAX_DRAWN = 3, 12  # of each type; more, where none of them is computed
MAX_NATIVE_ERROR = 0.1

# What is drawn of, where a family knows the name.
HEADS: list[dict[str, Any]] = [
    {"hidden_size": 40, "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 8},
    {"hidden_size": 56, "num_attention_heads": 7, "num_key_value_heads": 7, "head_dim": 24},
    {"hidden_size": 64, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 6},
    {"hidden_size": 72, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 4},
    {"hidden_size": 60, "num_attention_heads": 6, "num_key_value_heads": 1, "head_dim": 10},
]
WHOLE_HEADS: list[dict[str, Any]] = [  # as our C++ takes them, of odd numbers of other things
    {"hidden_size": 80, "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 16},
    {"hidden_size": 112, "num_attention_heads": 7, "num_key_value_heads": 7, "head_dim": 48},
    {"hidden_size": 66, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 272},
    {"hidden_size": 144, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 32},
]
ACTIVATIONS = ["silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "relu2"]
ROPES: list[dict[str, Any]] = [
    {"rope_type": "default", "rope_theta": 77.0},
    {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.5},
    {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
    {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 50,
    },
    *(
        {"rope_type": "yarn", "rope_theta": 1e4, "original_max_position_embeddings": 64} | more
        for more in (
            {"factor": 8.0, "beta_fast": 8.0, "beta_slow": 2.0},
            {"factor": 3.0, "attention_factor": 0.9},
            {"factor": 4.0, "mscale": 0.8, "mscale_all_dim": 0.5},
        )
    ),
]
CHOICES: dict[str, list[Any]] = {
    "hidden_act hidden_activation activation_function": ACTIVATIONS,
    "num_experts num_local_experts n_routed_experts": [3, 5, 7, 12],
    "num_experts_per_tok moe_k moe_topk top_k_experts": [1, 2, 3],
    "n_shared_experts num_shared_experts": [1, 3],
    "rms_norm_eps layer_norm_eps norm_eps": [1e-2, 1e-7],
    "mamba_d_conv conv_kernel linear_conv_kernel_dim": [2, 3],
    "vocab_size": [257, VOCAB_SIZE + 1],
    "intermediate_size": [33, 104],
    "moe_intermediate_size": [8, 17, 40],
    "eos_token_id": [None, 0, [1, 2, 7]],
    "pad_token_id": [None, 0, 2],
    "sliding_window": [None, 1, 7, WINDOW, 4096],
    "max_window_layers": [0, 1, 9],
    "n_group": [1, 2, 4],
    "first_k_dense_replace": [0, 1, 9],
    "decoder_sparse_step": [1, 2],
    "clip_qkv": [None, 2.0],
    "final_logit_softcapping": [None, 9.0],
    "qk_rope_head_dim": [4, 16],
    "v_head_dim": [6, 20],
    "kv_lora_rank": [7, 33],
    "q_lora_rank": [None, 13],
}
CHOICES_OF = {name: values for names, values in CHOICES.items() for name in names.split()}
# Of transformers itself, and not of a model.
NOT_OF_MODELS = {
    "is_decoder",
    "is_encoder_decoder",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "rescale_prenorm_residual",
    "return_dict",
    "use_cache",
    "use_mambapy",
}
IS_SCALED = ("multiplier", "scale", "scaling", "scaling_factor", "alpha", "beta")


def drawn_config(model_type: str, source: random.Random, *, is_native: bool) -> dict[str, Any]:
    """A configuration of the tests with a few other values; its heads may be for our C++."""
    from transformers import AutoConfig

    known = AutoConfig.for_model(model_type).to_dict()
    tested = [values for each, values in FAMILIES.values() if each == model_type]
    values = {**source.choice(tested)}
    if is_native:
        values = with_whole_heads(model_type, values)
    choices: dict[str, list[Any]] = {}
    for name, value in known.items():
        if name in CHOICES_OF:
            choices[name] = CHOICES_OF[name]
        elif isinstance(value, bool) and name not in NOT_OF_MODELS:
            choices[name] = [not values.get(name, value)]
        elif isinstance(value, float) and name.endswith(IS_SCALED):
            choices[name] = [0.5 * value, 1.7 * value]
        elif name == "layer_types" and value:
            types = values.get(name) or value[:2]
            choices[name] = [source.choices(types, k=len(types))]
    for name in source.sample(sorted(choices), min(len(choices), source.randint(2, 5))):
        values[name] = source.choice(choices[name])
    if "head_dim" in known and source.random() < 0.5:
        values |= source.choice(WHOLE_HEADS if is_native else HEADS)
    ropes = known.get("rope_parameters") or {}
    if "rope_theta" in ropes and source.random() < 0.5:
        kept = {each: value for each, value in ropes.items() if each == "partial_rotary_factor"}
        values["rope_parameters"] = source.choice(ROPES) | kept
    return values


class Drawn(NamedTuple):
    """A model that transformers computes, too."""

    path: Path
    prompts: dict[int, list[int]]

    def adds(self) -> dict[int, AddRequest]:
        return {
            run_id: make_add(run_id, ids, max_tokens=4, ignore_eos=True)
            for run_id, ids in self.prompts.items()
        }


def drawn_models(model_type: str, folder: Path, *, is_native: bool) -> Iterator[Drawn]:
    """Up to MAX_DRAWN."""
    source = random.Random(model_type)
    for number in range(MAX_DRAWN):
        values = drawn_config(model_type, source, is_native=is_native)
        print(number, values)
        vocab_size = min(VOCAB_SIZE, values.get("vocab_size", VOCAB_SIZE))
        prompts = {
            run_id: [each % vocab_size for each in random_prompt(length, run_id)]
            for run_id, length in ((1, 110), (2, 9), (3, 33))
        }
        try:
            path = save_tiny_model(folder / str(number), model_type, is_rounded=is_native, **values)
            assert reference_logits(path, prompts[1]).isfinite().all()
        except (*MODEL_ERRORS, ArithmeticError, NameError) as exc:
            print("transformers has no such model:", exc)
            continue
        yield Drawn(path, prompts)


def opened(drawn: Drawn, **config: Any) -> Rig | None:
    """None: it is refused, in a sentence."""
    try:
        return Rig(drawn.path, **config)
    except ConfigError as exc:
        print("refused:", exc)
        return None


@pytest.mark.nightly
@pytest.mark.parametrize("model_type", TYPES)
def test_drawn_configurations(model_type: str, tmp_path: Path) -> None:
    num_computed = 0
    for number, drawn in enumerate(drawn_models(model_type, tmp_path, is_native=False)):
        if number >= NUM_DRAWN and num_computed:
            break
        rig = opened(drawn, max_step_tokens=33, num_kv_tokens=256, max_running=8)
        if rig is None:
            continue
        outputs = rig.run(*drawn.adds().values())
        for run_id, prompt in drawn.prompts.items():
            assert_like_reference(drawn.path, rig, run_id, prompt + outputs[run_id])
        num_computed += 1
        forward = rig.runner._forward._forward
        if not isinstance(forward, TorchForward) or not isinstance(forward._model, DecoderModel):
            continue
        alone = Rig(drawn.path, max_step_tokens=160)
        alone.run(drawn.adds()[1])
        assert all(torch.equal(rig.logits[key], each) for key, each in alone.logits.items())
    assert num_computed


@needs_bfloat16
@pytest.mark.nightly
@pytest.mark.parametrize("model_type", NATIVE_TYPES)
def test_drawn_configurations_in_our_cpp(model_type: str, tmp_path: Path) -> None:
    """Some logits are near, whatever a near tie of a router does to others."""
    num_computed = 0
    models = drawn_models(model_type, tmp_path, is_native=True)
    for number, drawn in enumerate(models):
        if number >= NUM_DRAWN and num_computed:
            break
        native = {"dtype": "bfloat16", "cpu_kernels": "native"}
        rig = opened(drawn, max_step_tokens=33, num_kv_tokens=256, max_running=8, **native)
        if rig is None:
            continue
        outputs = rig.run(*drawn.adds().values())
        errors = []
        for run_id, prompt in drawn.prompts.items():
            reference = reference_logits(drawn.path, prompt + outputs[run_id])
            errors += [
                relative_error(each, reference[position - 1])
                for (each_id, position), each in rig.logits.items()
                if each_id == run_id
            ]
        assert torch.tensor(errors).quantile(0.25) < MAX_NATIVE_ERROR
        alone = Rig(drawn.path, max_step_tokens=160, num_threads=2, **native)
        alone.run(drawn.adds()[1])
        assert all(torch.equal(rig.logits[key], each) for key, each in alone.logits.items())
        num_computed += 1
    assert num_computed


def relative_error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())
