"""How a recurrent layer of the fused decoder is made, told by data."""

from __future__ import annotations

from dataclasses import dataclass

from worker.engine.layers.state_layer import StateLayer


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvConfig:
    """LFM2's: a convolution between two gates."""

    num_channels: int
    kernel_size: int
    has_bias: bool  # of its projections, and of the convolution

    @property
    def state_layer(self) -> StateLayer:
        return StateLayer(((self.kernel_size - 1, self.num_channels),))

    @property
    def num_projection_values(self) -> int:
        return 4 * self.num_channels * self.num_channels


RecurrentConfig = ShortConvConfig
