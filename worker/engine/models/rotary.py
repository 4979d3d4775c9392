"""Rotary position embedding."""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from worker.engine.models.rope_config import RopeConfig


class RotaryEmbedding:
    """Rotates pairs of a head's values by angles that grow with the position.

    Pairs lie half a head apart, as in checkpoints for transformers. `max_positions` is the longest
    text that will ever come. Dynamic stretching and longrope depend on it, and on it alone: keys
    that are cached under one stretch cannot be read under another.
    """

    def __init__(
        self, config: RopeConfig, head_dim: int, max_positions: int, dtype: torch.dtype
    ) -> None:
        num_rotated = config.num_rotated(head_dim)
        frequencies = _frequencies(config, head_dim, max_positions)
        angles = torch.outer(torch.arange(max_positions).float(), frequencies)
        scale = config.growth
        still = (0, (head_dim - num_rotated) // 2)  # pairs that stay as they are
        # [max_positions, head_dim / 2] each
        self.cos = functional.pad(angles.cos() * scale, still, value=1.0).to(dtype)
        sines = -angles.sin() if config.is_backwards else angles.sin()
        self.sin = functional.pad(sines * scale, still).to(dtype)
        self._pairs = torch.arange(head_dim // 2)
        self._axes = functional.pad(torch.tensor(config.axes or (0,) * (num_rotated // 2)), still)

    def move_to(self, device: torch.device) -> None:
        """Where the model is, before its first step."""
        self.cos, self.sin = self.cos.to(device), self.sin.to(device)
        self._axes, self._pairs = self._axes.to(device), self._pairs.to(device)

    def angles(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine, [num_tokens, 1, head_dim / 2] each: once a step, for all layers.

        `positions` [num_tokens] int64; or [3, num_tokens], of which each pair has an axis.
        """
        if positions.dim() == 1:
            return self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)
        rows = positions[self._axes].T  # [num_tokens, head_dim / 2]
        return self.cos[rows, self._pairs].unsqueeze(1), self.sin[rows, self._pairs].unsqueeze(1)


def head_order(config: RopeConfig, head_dim: int) -> torch.Tensor | None:
    """Which of a head's values, as they are stored, comes at each place, so that pairs lie half a
    head apart. None where they do. Products of queries and keys know of no order.
    """
    num_rotated = config.num_rotated(head_dim)
    is_in_order = num_rotated == head_dim or config.kind == "proportional"
    if is_in_order and not config.has_neighbours:
        return None
    rotated, still = torch.arange(num_rotated), torch.arange(num_rotated, head_dim)
    first, second = rotated.chunk(2)
    if config.has_neighbours:
        first, second = rotated[0::2], rotated[1::2]
    half = len(still) // 2
    return torch.cat([first, still[:half], second, still[half:]])


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """`x` [num_tokens, num_heads, head_dim]."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _frequencies(config: RopeConfig, head_dim: int, max_positions: int) -> torch.Tensor:
    """[num_rotated / 2] float32."""
    num_waving = config.num_waving(head_dim)
    exponents = torch.arange(0, num_waving, 2).float() / num_waving
    match config.kind:
        case "default":
            return 1.0 / config.theta**exponents
        case "linear":
            return 1.0 / config.theta**exponents / config.factor
        case "dynamic":
            return 1.0 / _dynamic_theta(config, num_waving, max_positions) ** exponents
        case "yarn":
            return _yarn_frequencies(config, 1.0 / config.theta**exponents, num_waving / 2)
        case "longrope":
            is_long = max_positions > config.original_max_positions
            factors = torch.tensor(config.long_factors if is_long else config.short_factors)
            return 1.0 / (factors * config.theta**exponents)
        case "proportional":
            exponents = torch.arange(0, config.num_rotated(head_dim), 2).float() / head_dim
            return 1.0 / config.theta**exponents / config.factor
        case "llama3":
            return _llama3_frequencies(config, 1.0 / config.theta**exponents)


def _dynamic_theta(config: RopeConfig, head_dim: int, max_positions: int) -> float:
    """A larger base, so that the longest wave grows as the text outgrows the training length."""
    stretch = max(1.0, max_positions / config.original_max_positions)
    growth = config.factor * stretch - (config.factor - 1)
    return config.theta * float(growth ** (head_dim / (head_dim - 2)))


def _llama3_frequencies(config: RopeConfig, frequencies: torch.Tensor) -> torch.Tensor:
    """Short waves stay, long ones are stretched by the factor, those between by a share of it."""
    num_waves = config.original_max_positions * frequencies / (2 * math.pi)
    width = config.high_freq_factor - config.low_freq_factor
    share = ((num_waves - config.low_freq_factor) / width).clamp(0, 1)  # 1 stays as it is
    return share * frequencies + (1 - share) * frequencies / config.factor


def _yarn_frequencies(
    config: RopeConfig, frequencies: torch.Tensor, num_pairs: float
) -> torch.Tensor:
    """As llama3's, but the share falls evenly with the index of the pair."""
    start = _pair_of_num_waves(config, num_pairs, config.beta_fast)
    end = _pair_of_num_waves(config, num_pairs, config.beta_slow)
    if config.truncate:
        start, end = math.floor(start), math.ceil(end)
    start, end = max(start, 0), min(end, 2 * num_pairs - 1)
    width = end - start if end != start else 0.001
    share = 1 - ((torch.arange(len(frequencies)).float() - start) / width).clamp(0, 1)
    return share * frequencies + (1 - share) * frequencies / config.factor


def _pair_of_num_waves(config: RopeConfig, num_pairs: float, num_waves: float) -> float:
    """Which pair turns so often within the training length; between two of them, too."""
    wave_len = config.original_max_positions / num_waves
    return num_pairs * math.log(wave_len / (2 * math.pi)) / math.log(config.theta)
