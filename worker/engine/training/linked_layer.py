"""The layer of a head that learns to go on behind its own guesses."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from worker.engine.models.rotary import rotate

NUM_LINKS = 4  # guesses behind each other, of which it learns
LINK_WEIGHT = 0.8  # of a guess, beside the one before it

Kept = list[tuple[torch.Tensor, torch.Tensor]]  # keys and values, by link


def layer_shape(config: Any, norm_eps: float) -> dict[str, Any]:
    """The shape of a layer as a teacher has it, in the words of its config.json."""
    size, num_heads = config.hidden_size, config.num_attention_heads
    rope: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    return {
        "hidden_size": size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": num_heads,
        "num_key_value_heads": getattr(config, "num_key_value_heads", None) or num_heads,
        "head_dim": getattr(config, "head_dim", None) or size // num_heads,
        "rms_norm_eps": norm_eps,
        "rope_theta": rope.get("rope_theta", 10000.0),
    }


def chain_loss(
    found: list[torch.Tensor], wanted: torch.Tensor, counts: torch.Tensor
) -> torch.Tensor:
    """`found`: logits of each link [num_samples, len - 1 - link, num_outputs]: at t, of the token
    at t + 2 + link; `wanted` [num_samples, len, num_outputs]: logarithms of the teacher's
    probabilities; `counts` [num_samples, len] bool, as of a `Batch`.
    """
    losses = torch.zeros(())
    for link, logits in enumerate(found):
        counted = counts[:, 1 + link :]  # of a pair's token, and behind guesses
        if not counted.any():
            break
        loss = functional.kl_div(
            logits[counted].log_softmax(-1),
            wanted[:, 1 + link :][counted],
            log_target=True,
            reduction="batchmean",
        )
        losses = losses + LINK_WEIGHT**link * loss
    return losses


def share_of(is_right: torch.Tensor) -> float:
    """The share of true ones in any number of bool."""
    return float(is_right.sum()) / max(1, is_right.numel())


class LinkedLayer(nn.Module):
    """Attention, of what is `num_inputs` wide, and an MLP: with the names of Llama's tensors."""

    def __init__(self, shape: dict[str, Any], num_inputs: int) -> None:
        super().__init__()
        size, inner_size = shape["hidden_size"], shape["intermediate_size"]
        self.head_dim, self.theta = shape["head_dim"], shape["rope_theta"]
        attention_size = shape["num_attention_heads"] * self.head_dim
        kv_size = shape["num_key_value_heads"] * self.head_dim
        eps = shape["rms_norm_eps"]
        self.input_layernorm = nn.RMSNorm(size, eps)
        self.post_attention_layernorm = nn.RMSNorm(size, eps)
        self.self_attn = nn.ModuleDict(
            {
                "q_proj": new_linear(num_inputs, attention_size),
                "k_proj": new_linear(num_inputs, kv_size),
                "v_proj": new_linear(num_inputs, kv_size),
                "o_proj": new_linear(attention_size, size),
            }
        )
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": new_linear(size, inner_size),
                "up_proj": new_linear(size, inner_size),
                "down_proj": new_linear(inner_size, size),
            }
        )

    def run(self, x: torch.Tensor, residual: torch.Tensor, kept: Kept) -> torch.Tensor:
        """`x` [num_samples, len, num_inputs], `residual` [num_samples, len, hidden_size] -> the
        same. `kept`: of the links before this one, to which its own are added.
        """
        residual = residual + self.self_attn["o_proj"](self._attend(x, kept))
        x = self.post_attention_layernorm(residual)
        gated = functional.silu(self.mlp["gate_proj"](x)) * self.mlp["up_proj"](x)
        made: torch.Tensor = residual + self.mlp["down_proj"](gated)
        return made

    def _attend(self, x: torch.Tensor, kept: Kept) -> torch.Tensor:
        """To what the streams were given to, up to a place; of later links to the place's own."""
        size = x.shape[1]
        queries, keys, values = (self._heads(x, f"{name}_proj") for name in "qkv")
        cosines, sines = self._angles(len(kept), size)
        queries, keys = rotate(queries, cosines, sines), rotate(keys, cosines, sines)
        num_shared = queries.shape[2] // keys.shape[2]
        kept.append((keys, values))
        keys, values = (
            torch.stack([each[:, :size].repeat_interleave(num_shared, 2) for each in parts], 1)
            for parts in zip(*kept, strict=True)
        )  # [num_samples, num_links, size, num_heads, head_dim]
        first = torch.einsum("bqhd,bkhd->bhqk", queries, keys[:, 0])
        is_later = torch.ones(size, size, dtype=torch.bool).triu(1)
        first = first.masked_fill(is_later, -torch.inf)
        own = torch.einsum("bqhd,blqhd->bhql", queries, keys[:, 1:])
        weights = (torch.cat([first, own], dim=-1) * self.head_dim**-0.5).softmax(-1)
        attended = torch.einsum("bhqk,bkhd->bqhd", weights[..., :size], values[:, 0])
        attended += torch.einsum("bhql,blqhd->bqhd", weights[..., size:], values[:, 1:])
        return attended.flatten(2)

    def _heads(self, x: torch.Tensor, name: str) -> torch.Tensor:
        heads: torch.Tensor = self.self_attn[name](x).unflatten(-1, (-1, self.head_dim))
        return heads

    def _angles(self, start: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """[size, 1, head_dim / 2] cosines and sines of positions from `start`."""
        frequencies = self.theta ** (-torch.arange(0, self.head_dim, 2) / self.head_dim)
        angles = torch.arange(start, start + size)[:, None, None] * frequencies
        return angles.cos(), angles.sin()


def new_linear(in_features: int, out_features: int) -> nn.Linear:
    """Random, without a bias."""
    linear = nn.Linear(in_features, out_features, bias=False)
    nn.init.normal_(linear.weight, std=0.5 * in_features**-0.5)
    return linear
