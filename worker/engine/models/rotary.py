"""Rotary position embedding."""

from __future__ import annotations

import math

import torch

from worker.engine.models.model_config import RopeConfig


class RotaryEmbedding:
    """Rotates pairs of a head's values by angles that grow with the position.

    Pairs lie half a head apart, as in checkpoints for transformers.
    """

    def __init__(
        self, config: RopeConfig, head_dim: int, max_positions: int, dtype: torch.dtype
    ) -> None:
        angles = torch.outer(torch.arange(max_positions).float(), _frequencies(config, head_dim))
        self._cos = angles.cos().to(dtype)  # [max_positions, head_dim / 2]
        self._sin = angles.sin().to(dtype)

    def angles(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine, [num_tokens, 1, head_dim / 2] each: once a step, for all layers."""
        return self._cos[positions].unsqueeze(1), self._sin[positions].unsqueeze(1)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """`x` [num_tokens, num_heads, head_dim]."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _frequencies(config: RopeConfig, head_dim: int) -> torch.Tensor:
    exponents = torch.arange(0, head_dim, 2).float() / head_dim
    frequencies = 1.0 / config.theta**exponents
    match config.kind:
        case "default":
            return frequencies
        case "linear":
            return frequencies / config.factor
        case "llama3":
            return _llama3_frequencies(config, frequencies)


def _llama3_frequencies(config: RopeConfig, frequencies: torch.Tensor) -> torch.Tensor:
    """Short waves stay, long ones are stretched by the factor, those between by a share of it."""
    num_waves = config.original_max_positions * frequencies / (2 * math.pi)
    width = config.high_freq_factor - config.low_freq_factor
    share = ((num_waves - config.low_freq_factor) / width).clamp(0, 1)  # 1 stays as it is
    return share * frequencies + (1 - share) * frequencies / config.factor
