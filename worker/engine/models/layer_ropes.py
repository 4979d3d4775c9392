"""How each layer of a model rotates its queries and keys."""

from __future__ import annotations

from typing import Self

import torch

from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.layer_config import QueryGrowth
from worker.engine.models.rotary import RotaryEmbedding

Angles = tuple[torch.Tensor, torch.Tensor]  # as RotaryEmbedding.angles gives them


class LayerRopes:
    """A rotation by layer; layers of one kind share it, and its angles in a step.

    The queries of layers that have one, or of those that have none, may grow with their positions.
    """

    def __init__(
        self, rotaries: tuple[RotaryEmbedding | None, ...], growth: QueryGrowth | None = None
    ) -> None:
        self._rotaries = rotaries
        self._growth = growth
        self._positions = torch.empty(0, dtype=torch.int64)
        self._angles: dict[RotaryEmbedding, Angles] = {}  # of this step
        self._factors: torch.Tensor | None = None  # the same

    @classmethod
    def of(
        cls,
        config: DecoderConfig,
        max_context_len: int,
        dtype: torch.dtype,
        device: torch.device | None = None,
    ) -> Self:
        """On the CPU, or on `device`."""
        sizes = [
            layer.head_dim if config.latent is None else config.head_dim
            for layer in config.attention_layers
        ]
        kinds = [*zip(config.layer_ropes, sizes, strict=True)]
        made = {
            (rope, size): RotaryEmbedding(rope, size, max_context_len, dtype)
            for rope, size in kinds
            if rope is not None
        }
        if device is not None:
            for rotary in made.values():
                rotary.move_to(device)
        return cls(
            tuple(None if rope is None else made[rope, size] for rope, size in kinds),
            config.query_growth,
        )

    def begin(self, positions: torch.Tensor) -> None:
        """Once a step, before the first layer: [num_tokens] int64, or [3, num_tokens] by axis."""
        self._positions = positions
        self._angles = {}
        self._factors = None

    def rotary(self, layer_id: int) -> RotaryEmbedding | None:
        """None: the layer does not rotate."""
        return self._rotaries[layer_id]

    def angles(self, layer_id: int) -> Angles | None:
        """The angles of this step's positions."""
        rotary = self._rotaries[layer_id]
        if rotary is None:
            return None
        if rotary not in self._angles:
            self._angles[rotary] = rotary.angles(self._positions)
        return self._angles[rotary]

    def query_factors(self, layer_id: int) -> torch.Tensor | None:
        """[num_tokens, 1, 1] float32, of this step's positions; None: queries do not grow."""
        growth = self._growth
        rotates = self._rotaries[layer_id] is not None
        if growth is None or growth.is_of_rotated != rotates:
            return None
        if self._factors is None:
            steps = (self._positions + growth.start).float() / growth.step
            self._factors = (torch.log1p(steps.floor()) * growth.slope + 1.0).view(-1, 1, 1)
        return self._factors
