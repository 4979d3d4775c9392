"""Our attention as transformers' models call it: by name, with the step as a keyword."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from shared.errors import ConfigError
from worker.engine.layers.attention_backend import AttentionBackend, AttentionLayer

ATTENTION_NAME = "jetflock"
# What a model may tell every attention, and ours needs not: positions are in the keys already.
IDLE_TENSORS = frozenset({"position_ids"})


class Step(Protocol):
    """What one forward pass does at each layer's attention."""

    def attend(
        self,
        layer_id: int,
        describe: Callable[[], AttentionLayer],
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
    ) -> torch.Tensor:
        """q, k, v [num_tokens, heads, head_dim] -> [num_tokens, num_heads * head_dim]."""
        ...


class TrialStep:
    """Computes nothing; remembers what the model asks for."""

    def __init__(self) -> None:
        self.layers: dict[int, AttentionLayer] = {}
        self.keys: dict[int, torch.Tensor] = {}

    def attend(
        self,
        layer_id: int,
        describe: Callable[[], AttentionLayer],
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
    ) -> torch.Tensor:
        if layer_id in self.layers:
            raise ConfigError(f"layer {layer_id} attends twice in a step: not supported")
        if v.shape != k.shape:  # shorter ones were filled up
            raise ConfigError(
                f"attention with keys of {k.shape[-1]} and values of {v.shape[-1]} is not supported"
            )
        self.layers[layer_id] = describe()
        self.keys[layer_id] = k.clone()
        return torch.zeros_like(q).flatten(1)


class PagedStep:
    """Attends over the pages of the step that `attention` was told of."""

    def __init__(self, attention: AttentionBackend) -> None:
        self._attention = attention

    def attend(
        self,
        layer_id: int,
        describe: Callable[[], AttentionLayer],
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
    ) -> torch.Tensor:
        return self._attention.forward(q, k, v, layer_id)


def register_attention() -> None:
    """Makes `attn_implementation=ATTENTION_NAME` known. No masks are built under this name."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(ATTENTION_NAME, _attend)


def _attend(
    module: Any,
    query: torch.Tensor,  # [1, num_heads, num_tokens, head_dim]
    key: torch.Tensor,  # [1, num_kv_heads, num_tokens, head_dim]
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    *,
    jetflock_step: Step | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    name = type(module).__name__
    for keyword, given in others.items():
        if isinstance(given, torch.Tensor) and keyword not in IDLE_TENSORS:
            raise ConfigError(f"{name} gives its attention {keyword!r}: not supported")
    if jetflock_step is None:
        raise ConfigError(f"{name} does not pass keywords on to its attention: not supported")
    if attention_mask is not None:
        raise ConfigError(f"{name} masks its attention in its own way: not supported")
    if not getattr(module, "is_causal", True):
        raise ConfigError(f"{name} attends to later tokens: not supported")
    q, k, v = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))
    num_values = v.shape[-1]
    if num_values < k.shape[-1]:  # pages hold keys and values of one size
        v = torch.nn.functional.pad(v, (0, k.shape[-1] - num_values))

    def describe() -> AttentionLayer:
        return AttentionLayer(
            num_heads=q.shape[1],
            num_kv_heads=k.shape[1],
            head_dim=q.shape[2],
            scale=q.shape[2] ** -0.5 if scaling is None else float(scaling),
            window=sliding_window,
            soft_cap=softcap,
            sinks=None if s_aux is None else s_aux.float(),
        )

    output = jetflock_step.attend(module.layer_idx, describe, q, k, v)
    return output.view(1, *q.shape)[..., :num_values], None
