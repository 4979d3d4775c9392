"""Text models some of whose layers keep a state in the place of keys and values, or beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shared.checkpoint.vision.vision_text import TEXT_ARCHITECTURES, text_config

# Those that are served; a test compares them with what the worker's registry has.
RECURRENT_ARCHITECTURES = frozenset(
    {
        "BambaForCausalLM",
        "FalconH1ForCausalLM",
        "FalconMambaForCausalLM",
        "GraniteMoeHybridForCausalLM",
        "JambaForCausalLM",
        "KimiLinearForCausalLM",
        "Lfm2ForCausalLM",
        "Lfm2MoeForCausalLM",
        "Mamba2ForCausalLM",
        "MambaForCausalLM",
        "MiniMaxForCausalLM",
        "NemotronHForCausalLM",
        "OlmoHybridForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen3_5ForCausalLM",
        "Qwen3_5MoeForCausalLM",
        "Zamba2ForCausalLM",
    }
)
# What their makers call those that transformers has under a name of its own.
SAME_ARCHITECTURES = {
    "MiniMaxM1ForCausalLM": "MiniMaxForCausalLM",
    "MiniMaxText01ForCausalLM": "MiniMaxForCausalLM",
}
# All of whose layers are recurrent: nothing bounds the lengths of their texts.
_ENDLESS_ARCHITECTURES = ("FalconMambaForCausalLM", "Mamba2ForCausalLM", "MambaForCausalLM")
DEFAULT_CONTEXT_LEN = 1 << 17  # of these, where nothing says more
MAX_CONTEXT_LEN = 1 << 22
_ATTENDING = {"attention", "full_attention"}


def is_endless(config: dict[str, Any]) -> bool:
    """Whether, by config.json, a text may be of any length."""
    return config.get("architectures") in [[name] for name in _ENDLESS_ARCHITECTURES]


def keeps_states(config: dict[str, Any]) -> bool:
    """Whether it does, by config.json. A family's models may do without: Granite 4.0's smallest all
    attend.
    """
    architectures = config.get("architectures")
    text = text_config(config)
    if not isinstance(architectures, list) or len(architectures) != 1:
        return False
    name = SAME_ARCHITECTURES.get(str(architectures[0]), str(architectures[0]))
    kinds_of_text: Mapping[str, str] = TEXT_ARCHITECTURES.get(name, {})
    if kinds_of_text.get(str(text.get("model_type")), name) not in RECURRENT_ARCHITECTURES:
        return False
    types = text.get("layer_types", text.get("layers_block_type"))
    return not (isinstance(types, list) and types and all(each in _ATTENDING for each in types))
