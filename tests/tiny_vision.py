"""Tiny random checkpoints of models that read images, whose text alone is served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.tiny_decoder import VOCAB_SIZE, tiny_decoder_config

_TOWER = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
_SIGLIP = {"vision_config": {"model_type": "siglip_vision_model", **_TOWER}}
_QWEN2_TOWER = {
    "depth": 1,
    "embed_dim": 16,
    "hidden_size": 48,
    "intermediate_size": 32,
    "out_hidden_size": 48,
    "num_heads": 2,
    "fullatt_block_indexes": [0],
}
_QWEN3_TOWER = _QWEN2_TOWER | {"hidden_size": 16, "deepstack_visual_indexes": [0]}
_MROPE = {"rope_type": "default", "rope_theta": 1e4}
_WINDOWS = {"sliding_window": 24, "layer_types": ["sliding_attention", "full_attention"]}
_PLE = {"hidden_size_per_layer_input": 10, "vocab_size_per_layer_input": VOCAB_SIZE}
_GEMMA_4_TOWER = _TOWER | {"head_dim": 8, "num_key_value_heads": 2}
_LLAMA_4 = {"num_local_experts": 2, "attention_chunk_size": 24, "intermediate_size_mlp": 40}
_LLAMA_4_TOWER = _TOWER | dict.fromkeys(
    ("vision_output_dim", "projector_input_dim", "projector_output_dim"), 16
)

# By name: model_type, what its text is not as in `tiny_decoder_config`, and all else.
READERS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "gemma3": ("gemma3", _WINDOWS, _SIGLIP | {"mm_tokens_per_image": 1}),
    "gemma4": ("gemma4", _WINDOWS | _PLE, {"vision_config": _GEMMA_4_TOWER}),
    "gemma4_unified": ("gemma4_unified", _WINDOWS, {"vision_config": None, "audio_config": None}),
    "idefics3": ("idefics3", {"model_type": "llama"}, {"vision_config": _TOWER}),
    "internvl qwen2": ("internvl", {"model_type": "qwen2"}, {"vision_config": _TOWER}),
    "internvl qwen3": ("internvl", {"model_type": "qwen3"}, {"vision_config": _TOWER}),
    "llama4": ("llama4", _LLAMA_4, {"vision_config": _LLAMA_4_TOWER}),
    "llava_next": ("llava_next", {"model_type": "mistral"}, _SIGLIP),
    "llava_onevision": ("llava_onevision", {"model_type": "qwen2"}, _SIGLIP),
    "mistral3": (
        "mistral3",
        {"model_type": "mistral"},
        {"vision_config": {"model_type": "pixtral", **_TOWER}},
    ),
    "mistral3 ministral3": (
        "mistral3",
        {"model_type": "ministral3"},
        {"vision_config": {"model_type": "pixtral", **_TOWER}},
    ),
    "qwen2_vl": (
        "qwen2_vl",
        {"head_dim": 8, "rope_parameters": _MROPE | {"mrope_section": [2, 1, 1]}},
        {"vision_config": _QWEN2_TOWER},
    ),
    "qwen2_5_vl": (
        "qwen2_5_vl",
        {"head_dim": 8, "rope_parameters": _MROPE | {"mrope_section": [2, 1, 1]}},
        {"vision_config": _QWEN2_TOWER},
    ),
    "qwen3_vl": (
        "qwen3_vl",
        {"rope_parameters": _MROPE | {"mrope_section": [4, 2, 2], "mrope_interleaved": True}},
        {"vision_config": _QWEN3_TOWER},
    ),
    "qwen3_5": (
        "qwen3_5",
        {
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 12,
            "linear_value_head_dim": 20,
            "rope_parameters": _MROPE | {"partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]},
        },
        {"vision_config": _QWEN3_TOWER},
    ),
}
READERS["smolvlm"] = ("smolvlm", *READERS["idefics3"][1:])
READERS["qwen3_5_moe"] = (
    "qwen3_5_moe",
    READERS["qwen3_5"][1]
    | {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 20,
    },
    READERS["qwen3_5"][2],
)
READERS["qwen3_vl_moe"] = (
    "qwen3_vl_moe",
    READERS["qwen3_vl"][1]
    | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20},
    READERS["qwen3_vl"][2],
)


def save_tiny_reader(
    path: Path, name: str, text_overrides: dict[str, Any] | None = None, **overrides: Any
) -> Path:
    """One of READERS, with biases and norms that say something."""
    from transformers import AutoConfig, AutoModelForImageTextToText

    model_type, text, others = READERS[name]
    text_config = tiny_decoder_config() | {"pad_token_id": 2} | text | (text_overrides or {})
    config = AutoConfig.for_model(model_type, text_config=text_config, **(others | overrides))
    torch.manual_seed(0)
    auto_model: Any = AutoModelForImageTextToText
    model = auto_model.from_config(config, dtype=torch.float32)
    tell_something(model)
    model.save_pretrained(path)
    if model_type == "qwen3_vl_moe":
        _transpose_experts(path / "model.safetensors")
    return path


def tell_something(model: Any) -> None:
    """By its biases and norms."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.3 * torch.randn(parameter.shape)


def _transpose_experts(file: Path) -> None:
    """As the hub has them."""
    from safetensors.torch import load_file, save_file

    weights = load_file(file)
    for name, tensor in weights.items():
        if ".experts." in name:
            weights[name] = tensor.mT.contiguous()
    save_file(weights, file, {"format": "pt"})
