"""How a recurrent layer of the fused decoder is made, told by data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from worker.engine.layers.state_layer import StateLayer
from worker.engine.models.model_config import ConfigFile


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
    def projection_names(self) -> tuple[str, ...]:
        return "in_proj", "out_proj"

    @property
    def num_projection_values(self) -> int:
        return 4 * self.num_channels * self.num_channels


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaConfig:
    """Mamba 2's: a convolution, then heads that each keep a matrix, and forget it by and by."""

    hidden_size: int
    num_heads: int
    head_dim: int
    num_groups: int  # of heads that read and write their matrices by the same vectors
    state_size: int  # length of such a vector
    kernel_size: int
    has_conv_bias: bool
    has_in_bias: bool
    has_out_bias: bool
    # Of what heads give, in groups: behind their gates, before them, or none at all.
    norm: Literal["gated", "before gates", "none"] = "gated"
    step_limits: tuple[float, float]  # of what a token's time takes
    norm_eps: float

    @property
    def num_values(self) -> int:
        """The values of all heads."""
        return self.num_heads * self.head_dim

    @property
    def num_channels(self) -> int:
        """The channels of the convolution: values, then vectors to write by, then vectors to read
        by.
        """
        return self.num_values + 2 * self.num_groups * self.state_size

    @property
    def projection_size(self) -> int:
        """Gates, channels and a time for each head."""
        return self.num_values + self.num_channels + self.num_heads

    @property
    def state_layer(self) -> StateLayer:
        matrices = self.num_heads, self.head_dim, self.state_size
        return StateLayer(((self.kernel_size - 1, self.num_channels), matrices))

    @property
    def projection_names(self) -> tuple[str, ...]:
        return "in_proj", "out_proj"

    @property
    def num_projection_values(self) -> int:
        return self.hidden_size * (self.projection_size + self.num_values)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelMambaConfig:
    """Mamba 1's: a convolution, then channels that each keep a vector."""

    hidden_size: int
    num_channels: int
    state_size: int  # length of such a vector
    rank: int  # of what the channels' times are made of
    kernel_size: int
    has_conv_bias: bool
    has_projection_bias: bool
    # Of what times are made of, and of vectors to write by and to read by. bare: without weights.
    norm: Literal["weighted", "bare", "none"] = "weighted"
    norm_eps: float

    @property
    def state_layer(self) -> StateLayer:
        """As of one head, whose dimensions are the channels."""
        vectors = 1, self.num_channels, self.state_size
        return StateLayer(((self.kernel_size - 1, self.num_channels), vectors))

    @property
    def projection_names(self) -> tuple[str, ...]:
        return "in_proj", "x_proj", "dt_proj", "out_proj"

    @property
    def num_projection_values(self) -> int:
        inner_size = 2 * (self.rank + self.state_size)
        return self.num_channels * (3 * self.hidden_size + inner_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNetConfig:
    """Qwen's gated delta net: a convolution, then heads that each keep what values belong to
    which keys, and correct it.
    """

    hidden_size: int
    num_key_heads: int
    num_value_heads: int  # a multiple of those of keys
    key_dim: int  # of a head
    value_dim: int  # of a head
    kernel_size: int
    norm_eps: float
    # Of what leads to queries, keys, values and gates. by key head: all of a key, together.
    stored: Literal["joined", "by key head", "apart"] = "joined"
    max_rate: float = 1.0  # how much of a mistake is corrected at most: beyond 1 it turns around

    @property
    def num_keys(self) -> int:
        """Values of the keys of all heads, or of the queries."""
        return self.num_key_heads * self.key_dim

    @property
    def num_values(self) -> int:
        """The values of all heads."""
        return self.num_value_heads * self.value_dim

    @property
    def num_channels(self) -> int:
        """The channels of the convolution: queries, then keys, then values."""
        return 2 * self.num_keys + self.num_values

    @property
    def state_layer(self) -> StateLayer:
        matrices = self.num_value_heads, self.value_dim, self.key_dim
        return StateLayer(((self.kernel_size - 1, self.num_channels), matrices))

    @property
    def projection_names(self) -> tuple[str, ...]:
        match self.stored:
            case "apart":
                return (*(f"{each}_proj" for each in "qkvgba"), "out_proj")
            case "joined":
                return (*(f"in_proj_{each}" for each in ("qkv", "z", "b", "a")), "out_proj")
            case "by key head":
                return "in_proj_qkvz", "in_proj_ba", "out_proj"

    @property
    def num_projection_values(self) -> int:
        outputs = self.num_channels + 2 * self.num_values + 2 * self.num_value_heads
        return self.hidden_size * outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class KimiDeltaConfig:
    """Kimi's gated delta net (KDA): as the other, with a decay for each value of a key."""

    hidden_size: int
    num_heads: int
    head_dim: int  # of keys, and of values
    kernel_size: int
    norm_eps: float

    @property
    def num_values(self) -> int:
        """The values of all heads."""
        return self.num_heads * self.head_dim

    @property
    def state_layer(self) -> StateLayer:
        matrices = self.num_heads, self.head_dim, self.head_dim
        return StateLayer(((self.kernel_size - 1, 3 * self.num_values), matrices))

    @property
    def projection_names(self) -> tuple[str, ...]:
        return tuple(
            f"{each}_proj" for each in ("q", "k", "v", "f_a", "g_a", "b", "f_b", "g_b", "o")
        )

    @property
    def num_projection_values(self) -> int:
        outer_size = 4 * self.num_values + 2 * self.head_dim + self.num_heads
        return self.hidden_size * outer_size + 2 * self.head_dim * self.num_values


@dataclass(frozen=True, slots=True, kw_only=True)
class LightningConfig:
    """MiniMax's: heads that each keep what values belong to which keys, and forget it at a rate."""

    hidden_size: int
    num_heads: int
    head_dim: int  # of keys, and of values
    slope_scale: float  # by which all heads of the layer forget faster

    @property
    def num_values(self) -> int:
        """The values of all heads."""
        return self.num_heads * self.head_dim

    @property
    def state_layer(self) -> StateLayer:
        return StateLayer(((self.num_heads, self.head_dim, self.head_dim),))

    @property
    def projection_names(self) -> tuple[str, ...]:
        return "qkv_proj", "output_gate", "out_proj"

    @property
    def num_projection_values(self) -> int:
        return 5 * self.hidden_size * self.num_values


RecurrentConfig: TypeAlias = (
    ShortConvConfig
    | MambaConfig
    | ChannelMambaConfig
    | DeltaNetConfig
    | KimiDeltaConfig
    | LightningConfig
)


def layers_that_attend(config: ConfigFile, num_layers: int, recurrent: str) -> list[bool]:
    """Whether, by layer, it attends or is of the type `recurrent`. Raises ConfigError."""
    known = {"full_attention": True, recurrent: False}
    return config.by_layer("layer_types", config.get("layer_types", None), known, num_layers)
