"""Ropes that follow the length of the text, as transformers has them."""

from __future__ import annotations

from typing import Any

import torch


def fix_rope(model: Any, max_context_len: int) -> None:
    """Frequencies that follow the length of the text become those of the longest text.

    Keys that are cached under one set of frequencies cannot be read under another.
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    for module in model.modules():
        kind = getattr(module, "rope_type", None)
        kinds = kind if isinstance(kind, dict) else {None: kind}
        for layer_type, each in kinds.items():
            if each not in ("dynamic", "longrope"):
                continue
            named = {} if layer_type is None else {"layer_type": layer_type}
            frequencies, scaling = ROPE_INIT_FUNCTIONS[each](
                module.config, torch.device("cpu"), seq_len=max_context_len, **named
            )
            prefix = "" if layer_type is None else f"{layer_type}_"
            getattr(module, prefix + "inv_freq").copy_(frequencies)
            setattr(module, prefix + "attention_scaling", scaling)
            kinds[layer_type] = "fixed"  # transformers' code updates the kinds that it knows
        if kind is not None:
            module.rope_type = kinds if isinstance(kind, dict) else kinds[None]
