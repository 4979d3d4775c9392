"""How a layer of the fused decoder is made, as far as families differ: norms, MLP, activation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

from shared.errors import ConfigError
from worker.engine.models.model_config import ConfigFile, NotFused

Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2"]
ACTIVATION_OF_NAME: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_fast": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}
GATE_UP_PARTS = ("gate_proj", "up_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class NormConfig:
    """How a vector is brought to one length: by its root mean square, or its variance."""

    kind: Literal["rms", "layer"] = "rms"
    eps: float
    weight_offset: float = 0.0  # what checkpoints have subtracted from each weight
    has_weight: bool = True
    has_bias: bool = False

    @property
    def is_plain(self) -> bool:
        """Llama's."""
        is_scaled = self.has_weight and not self.weight_offset
        return self.kind == "rms" and is_scaled and not self.has_bias


@dataclass(frozen=True, slots=True, kw_only=True)
class NormPlaces:
    """The modules whose norms come there; None: there is none."""

    before_attention: str | None = "input_layernorm"
    after_attention: str | None = None
    before_mlp: str | None = "post_attention_layernorm"
    after_mlp: str | None = None


LLAMA_PLACES = NormPlaces()
PARALLEL = NormPlaces(before_mlp=None)  # one norm, of which attention and MLP both read
POST_NORMS = NormPlaces(
    before_attention=None,
    after_attention="post_attention_layernorm",
    before_mlp=None,
    after_mlp="post_feedforward_layernorm",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadNormConfig:
    """The norm of queries and of keys, with the epsilon and the kind of the layers' norms."""

    modules: tuple[str, str] = ("q_norm", "k_norm")
    # shared: each head by itself, with one weight for all; own: with weights of its own;
    # modules: the same, each head's in a module; whole: all heads at once; bare: without weights.
    scope: Literal["shared", "own", "modules", "whole", "bare"] = "shared"
    is_after_rope: bool = False
    is_of_rotated: bool = False  # layers that do not rotate have none
    norms_values: bool = False  # each head by itself, without weights
    has_bias: bool = False

    @property
    def is_plain(self) -> bool:
        """Qwen 3's."""
        is_more = self.is_after_rope or self.is_of_rotated or self.norms_values or self.has_bias
        return self.scope == "shared" and not is_more

    @property
    def is_native(self) -> bool:
        """Whether our C++ computes it."""
        return not (self.scope == "whole" and self.is_after_rope)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryGrowth:
    """A query of position p is multiplied with log(1 + floor((p + start) / step)) * slope + 1."""

    step: int
    slope: float
    start: int
    is_of_rotated: bool  # in layers that rotate, or in those that do not

    @property
    def begins_at(self) -> int:
        """The first position whose queries grow."""
        return self.step - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerInputsConfig:
    """What every layer is given of a token: an embedding of its own, and of the stream's."""

    vocab_size: int
    size: int  # of one layer's
    activation: Activation  # of the gate by which it is multiplied
    image_token_id: int  # whose embedding stands for those of an image


@dataclass(frozen=True, slots=True, kw_only=True)
class AltupConfig:
    """Streams beside each other, of which a layer computes one and corrects all."""

    num_streams: int
    active: int  # the one that layers compute
    scales_inputs: bool  # of the gates of its inputs, with a weight for each value
    laurel_rank: int  # of a projection beside attention


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpLayout:
    """Where a checkpoint has the layer that guesses the token behind the next one: names of its
    tensors, without `.weight`.
    """

    layer: str  # what the names of all that any layer has begin with
    embedding_norm: str
    hidden_norm: str
    join: str  # of an embedding and a hidden state, or the other way round
    norm: str  # behind the layer
    is_hidden_first: bool = False

    @classmethod
    def behind(cls, num_layers: int) -> Self:
        """DeepSeek's: a layer behind the last."""
        layer = f"model.layers.{num_layers}."
        return cls(
            layer=layer,
            embedding_norm=f"{layer}enorm",
            hidden_norm=f"{layer}hnorm",
            join=f"{layer}eh_proj",
            norm=f"{layer}shared_head.norm",
        )


@dataclass(frozen=True, slots=True)
class ClampedGate:
    """GPT-OSS's gate: gate and value within `bound`; gate * sigmoid(slope * gate) * (value + 1)."""

    slope: float
    bound: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpConfig:
    """Gated: the activation of one projection times another one; else the activation alone."""

    activation: Activation = "silu"
    clamp: ClampedGate | None = None  # in the place of the activation of one that is gated
    is_learned: bool = False  # in its place is xIELU, of which each layer has a curve
    is_gated: bool = True
    # Gated: gates up to this many standard deviations above their mean are zero; it is taken from
    # the others. None: all stay as they are.
    gate_cut: float | None = None
    up: tuple[str, ...] = GATE_UP_PARTS  # modules; one may hold gates and values
    down: str = "down_proj"

    @property
    def is_plain(self) -> bool:
        """Llama's."""
        return self.is_gated_by_silu and self.down == "down_proj"

    @property
    def is_gated_by_silu(self) -> bool:
        """Whatever its modules' names."""
        is_silu = self.activation == "silu" and self.clamp is None and not self.is_learned
        return is_silu and self.is_gated and self.gate_cut is None

    @property
    def num_projections(self) -> int:
        """Matrices of one size."""
        return 3 if self.is_gated else 2

    def up_sizes(self, intermediate_size: int) -> tuple[int, ...]:
        """Values of its inner projections, by piece."""
        return (intermediate_size, intermediate_size) if self.is_gated else (intermediate_size,)


LLAMA_MLP = MlpConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedBlocksConfig:
    """Attention and an MLP that layers take in turn, each with an addend of low rank of its own.

    They are given the stream and, beside it, the token's embedding.
    """

    num_blocks: int
    layer_ids: tuple[int, ...]  # whose mixers are given what a block makes of the stream, too
    adapter_rank: int
    adapts_attention: bool  # queries, keys and values, not the MLP alone
    mlp: MlpConfig
    has_mlp_bias: bool

    def block_of(self, turn: int) -> int:
        """The layer that has its weights; `turn`: which of `layer_ids` takes it."""
        return self.layer_ids[turn % self.num_blocks]


class LayerMlp(NamedTuple):
    """What every token of a layer goes through: its MLP, or the shared one of its experts."""

    config: MlpConfig
    intermediate_size: int
    block: str  # its module
    has_bias: bool


def activation(config: ConfigFile, name: str = "hidden_act") -> Activation:
    """Raises NotFused for one that we do not compute."""
    value = config.get(name, "silu")
    known = ACTIVATION_OF_NAME.get(value) if isinstance(value, str) else None
    if known is None:
        raise NotFused(f"{config.path}: {name}={value!r} is not supported")
    return known


def layer_inputs_config(
    config: ConfigFile, act: Activation, *, may_lack_tokens: bool = False
) -> LayerInputsConfig | None:
    """None: its layers have none. `may_lack_tokens`: those without stand for token 0. Raises
    ConfigError.
    """
    size = config.integer("hidden_size_per_layer_input", 0, least=0)
    if not size:
        return None
    vocab_size = config.integer("vocab_size_per_layer_input")
    if vocab_size < config.integer("vocab_size") and not may_lack_tokens:
        raise ConfigError(
            f"{config.path}: 'vocab_size_per_layer_input' {vocab_size} is less than 'vocab_size'"
        )
    pad_id = config.integer("pad_token_id", 0, least=0)
    return LayerInputsConfig(
        vocab_size=vocab_size, size=size, activation=act, image_token_id=pad_id
    )
