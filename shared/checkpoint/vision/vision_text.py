"""The text model inside a checkpoint that sees or hears, which is read as one of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# By what the checkpoint is, and the model_type of its text: the same text model on its own.
TEXT_ARCHITECTURES: Mapping[str, Mapping[str, str]] = {
    "Gemma3ForConditionalGeneration": {"gemma3_text": "Gemma3ForCausalLM"},
    "Gemma3nForConditionalGeneration": {"gemma3n_text": "Gemma3nForCausalLM"},
    "Gemma4ForConditionalGeneration": {"gemma4_text": "Gemma4ForCausalLM"},
    "Gemma4UnifiedForConditionalGeneration": {"gemma4_unified_text": "Gemma4UnifiedForCausalLM"},
    "Idefics3ForConditionalGeneration": {"llama": "LlamaForCausalLM"},
    "InternVLForConditionalGeneration": {
        "llama": "LlamaForCausalLM",
        "qwen2": "Qwen2ForCausalLM",
        "qwen3": "Qwen3ForCausalLM",
    },
    "Llama4ForConditionalGeneration": {"llama4_text": "Llama4ForCausalLM"},
    "LlavaNextForConditionalGeneration": {
        "llama": "LlamaForCausalLM",
        "mistral": "MistralForCausalLM",
        "qwen2": "Qwen2ForCausalLM",
    },
    "LlavaOnevisionForConditionalGeneration": {"qwen2": "Qwen2ForCausalLM"},
    "Mistral3ForConditionalGeneration": {
        "ministral3": "Ministral3ForCausalLM",
        "mistral": "MistralForCausalLM",
        "mistral4": "Mistral4ForCausalLM",
    },
    "Qwen2AudioForConditionalGeneration": {"qwen2": "Qwen2ForCausalLM"},
    # Their three axes of positions are one where there is only text.
    "Qwen2VLForConditionalGeneration": {"qwen2_vl_text": "Qwen2ForCausalLM"},
    "Qwen2_5_VLForConditionalGeneration": {"qwen2_5_vl_text": "Qwen2ForCausalLM"},
    "Qwen3VLForConditionalGeneration": {"qwen3_vl_text": "Qwen3ForCausalLM"},
    # Read as itself: in transformers its text is no model of its own.
    "Qwen3VLMoeForConditionalGeneration": {
        "qwen3_vl_moe_text": "Qwen3VLMoeForConditionalGeneration"
    },
    "Qwen3_5ForConditionalGeneration": {"qwen3_5_text": "Qwen3_5ForCausalLM"},
    "Qwen3_5MoeForConditionalGeneration": {"qwen3_5_moe_text": "Qwen3_5MoeForCausalLM"},
    "SmolVLMForConditionalGeneration": {"llama": "LlamaForCausalLM"},
    "VoxtralForConditionalGeneration": {"llama": "LlamaForCausalLM"},
}

# What the makers left to the defaults of a class, by the model_type of the text.
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "gemma3_text": {"vocab_size": 262208, "max_position_embeddings": 131072, "hidden_size": 2304},
    "qwen2": {"hidden_size": 4096},
}
_TEXT_PREFIXES = {
    "model.language_model.": "model.",
    "model.text_model.": "model.",
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
}
_TOWER = (
    *("vision_tower.", "vision_model.", "visual.", "multi_modal_projector.", "image_newline"),
    *("embed_vision.", "vision_embedder.", "connector."),
)
_EARS = ("audio_tower.", "embed_audio.")
_TOWER_PREFIXES = (*_TOWER, *(f"model.{each}" for each in _TOWER))
_OTHER_PREFIXES = (*_TOWER_PREFIXES, *_EARS, *(f"model.{each}" for each in _EARS))


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The part of config.json that tells of the text model; all of it where there is no such part.

    A key that only the whole has, like "eos_token_id", is not in it.
    """
    nested = config.get("text_config")
    if not isinstance(nested, dict):
        return config
    return {**_DEFAULTS.get(str(nested.get("model_type")), {}), **nested}


def has_separate_text(config: dict[str, Any]) -> bool:
    """Whether the text of this checkpoint is read as a model of its own."""
    architectures = config.get("architectures")
    return (
        isinstance(architectures, list)
        and len(architectures) == 1
        and str(architectures[0]) in TEXT_ARCHITECTURES
    )


def is_of_tower(stored_name: str, *, hears: bool) -> bool:
    """Whether a tensor is part of what sees, or of what hears, where that is used."""
    return stored_name.startswith(_OTHER_PREFIXES if hears else _TOWER_PREFIXES)


def text_tensor_name(stored_name: str) -> str | None:
    """What the text model on its own calls a tensor. None for a part of what sees or hears."""
    if stored_name.startswith(_OTHER_PREFIXES):
        return None
    for prefix, replacement in _TEXT_PREFIXES.items():
        if stored_name.startswith(prefix):
            return replacement + stored_name.removeprefix(prefix)
    return stored_name
