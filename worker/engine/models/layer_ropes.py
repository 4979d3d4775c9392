"""How each layer of a model rotates its queries and keys."""

from __future__ import annotations

from typing import Self

import torch

from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.rotary import RotaryEmbedding

Angles = tuple[torch.Tensor, torch.Tensor]  # as RotaryEmbedding.angles gives them


class LayerRopes:
    """A rotation by layer; layers of one kind share it, and its angles in a step."""

    def __init__(self, rotaries: tuple[RotaryEmbedding | None, ...]) -> None:
        self._rotaries = rotaries
        self._positions = torch.empty(0, dtype=torch.int64)
        self._angles: dict[RotaryEmbedding, Angles] = {}  # of this step

    @classmethod
    def of(
        cls,
        config: DecoderConfig,
        max_context_len: int,
        dtype: torch.dtype,
        device: torch.device | None = None,
    ) -> Self:
        """On the CPU, or on `device`."""
        made = {
            rope: RotaryEmbedding(rope, config.head_dim, max_context_len, dtype)
            for rope in config.layer_ropes
            if rope is not None
        }
        if device is not None:
            for rotary in made.values():
                rotary.move_to(device)
        return cls(tuple(None if rope is None else made[rope] for rope in config.layer_ropes))

    def begin(self, positions: torch.Tensor) -> None:
        """Once a step, before the first layer: [num_tokens] int64, or [3, num_tokens] by axis."""
        self._positions = positions
        self._angles = {}

    def rotary(self, layer_id: int) -> RotaryEmbedding | None:
        """None: the layer does not rotate."""
        return self._rotaries[layer_id]

    def angles(self, layer_id: int) -> Angles | None:
        """Of this step's positions."""
        rotary = self._rotaries[layer_id]
        if rotary is None:
            return None
        if rotary not in self._angles:
            self._angles[rotary] = rotary.angles(self._positions)
        return self._angles[rotary]
