"""Kimi Linear in the words of its makers' checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import load_file, save_file

from shared.checkpoint.model_files import ModelFiles
from tests.worker.engine.tiny_models import Rig, random_prompt, save_recurrent
from tests.worker.engine_fakes import make_add
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.registry import read_model_config

# As moonshotai/Kimi-Linear-48B-A3B-Instruct has it, but for its number of layers.
CONFIG = {
    "architectures": ["KimiLinearForCausalLM"],
    "auto_map": {"AutoConfig": "configuration_kimi.KimiLinearConfig"},
    "eos_token_id": 163586,
    "first_k_dense_replace": 1,
    "head_dim": 72,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "kv_lora_rank": 512,
    "linear_attn_config": {
        "full_attn_layers": [4],
        "head_dim": 64,
        "kda_layers": [1, 2, 3],
        "num_heads": 16,
        "short_conv_kernel_size": 3,
    },
    "mla_use_nope": True,
    "model_max_length": 1048576,
    "model_type": "kimi_linear",
    "moe_intermediate_size": 1024,
    "moe_layer_freq": 1,
    "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid",
    "num_attention_heads": 32,
    "num_expert_group": 1,
    "num_experts": 256,
    "num_experts_per_token": 8,
    "num_hidden_layers": 4,
    "num_key_value_heads": 32,
    "num_nextn_predict_layers": 0,
    "num_shared_experts": 1,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-05,
    "routed_scaling_factor": 2.446,
    "topk_group": 1,
    "v_head_dim": 128,
    "vocab_size": 163840,
}


def test_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    model = read_model_config(tmp_path)
    assert isinstance(model, DecoderConfig)
    assert model.attends == (False, False, False, True)
    assert model.layer_ropes == (None,)
    (layer,) = {*model.state_layers}
    assert layer.shapes == ((2, 3 * 16 * 64), (16, 64, 64))
    assert model.experts[0] is None
    experts = model.experts[1]
    assert experts is not None
    assert (experts.num_experts, experts.num_chosen, experts.scale) == (256, 8, 2.446)
    assert model.max_context_len == ModelFiles.read(tmp_path).max_context_len == 1048576


def test_its_dense_layers_have_names_of_their_own(tmp_path: Path) -> None:
    path = save_recurrent(tmp_path, "kimi_linear")
    add = make_add(1, random_prompt(20, seed=3), max_tokens=5, ignore_eos=True)
    here = Rig(path).run(add)
    file, dense = path / "model.safetensors", "model.layers.0.block_sparse_moe."
    weights = {
        name.replace(dense, "model.layers.0.mlp."): tensor
        for name, tensor in load_file(file).items()
    }
    assert "model.layers.0.mlp.up_proj.weight" in weights
    save_file(weights, file, {"format": "pt"})
    assert Rig(path).run(add) == here
