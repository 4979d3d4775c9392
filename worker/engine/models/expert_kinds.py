"""Which modules of transformers are mixtures of experts as our own products know them."""

from __future__ import annotations

from typing import Any

import torch

from worker.engine.models.expert_weights import Gate, SiluGate
from worker.engine.models.layer_config import ClampedGate


def num_expert_values(model: torch.nn.Module) -> int:
    """The values of the weights that may be kept in codes."""
    modules: list[Any] = [module for module in model.modules() if gate_of(module) is not None]
    return sum(each.gate_up_proj.numel() + each.down_proj.numel() for each in modules)


def gate_of(module: Any) -> Gate | None:
    """None where it is no module of experts, or of others than we have."""
    from transformers.activations import SiLUActivation
    from transformers.integrations.moe import _default_apply_gate
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

    if not getattr(module, "has_gate", False) or module.has_post_expert_norm:
        return None
    shape = shape_of(module)
    if shape[1] % 2 or shape[2] % 2:
        return None
    if isinstance(module, GptOssExperts):
        return ClampedGate(module.alpha, module.limit)
    is_plain = type(module)._apply_gate is _default_apply_gate and not module.has_bias
    if is_plain and module.is_concatenated and not module.is_transposed:
        return SiluGate() if isinstance(module.act_fn, SiLUActivation) else None
    return None


def shape_of(module: Any) -> tuple[int, int, int]:
    """num_experts, hidden_size, intermediate_size."""
    num_experts, *rest = module.down_proj.shape
    hidden_size, intermediate_size = reversed(rest) if module.is_transposed else rest
    return num_experts, hidden_size, intermediate_size
