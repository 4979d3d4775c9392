"""What models/decoder.py computes, told by data: families/ reads it from config.json."""

from __future__ import annotations

from dataclasses import dataclass

from shared.errors import ConfigError
from worker.engine.layers.attention_backend import AttentionLayer
from worker.engine.models.model_config import ConfigFile, ModelConfig, is_classifier
from worker.engine.models.rope_config import RopeConfig, rope_config

QKV_PARTS = ("q_proj", "k_proj", "v_proj")
GATE_UP_PARTS = ("gate_proj", "up_proj")
WINDOW_OF_LAYER_TYPE = {"full_attention": False, "sliding_attention": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scales:
    """Factors of a decoder's streams.

    A norm takes no heed of the length of what it is given. So `residual`, with which each layer
    multiplies all that it adds, is left out, and everything else, the norms' epsilon too, is
    divided by it.
    """

    embedding: float = 1.0
    residual: float = 1.0
    logits_divisor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig(ModelConfig):
    """A decoder of the Llama shape."""

    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    has_qk_norm: bool  # of each head, before it is rotated
    has_qkv_bias: bool
    has_output_bias: bool  # of the attention's output projection
    has_mlp_bias: bool
    has_tied_embeddings: bool
    stored_qkv: tuple[str, ...] = QKV_PARTS  # modules of queries, keys and values: three, or one
    stored_gate_up: tuple[str, ...] = GATE_UP_PARTS  # two, or one
    embedding_scale: float = 1.0  # what an embedding is multiplied with
    logits_divisor: float = 1.0

    @property
    def num_projection_values(self) -> int:
        """Of all layers' matrices: without embeddings, head, norms and biases."""
        attention_size = self.hidden_size * self.head_dim * 2 * (self.num_heads + self.num_kv_heads)
        mlp_size = 3 * self.hidden_size * self.intermediate_size
        return self.num_layers * (attention_size + mlp_size)

    @property
    def has_head(self) -> bool:
        """`LlamaModel`, for embeddings alone, has none."""
        return not self.architecture.endswith("Model")


def decoder_config(
    config: ConfigFile,
    architecture: str,
    eos_token_ids: tuple[int, ...],
    *,
    windows: tuple[int | None, ...],
    has_qkv_bias: bool = False,
    has_output_bias: bool = False,
    has_mlp_bias: bool = False,
    has_qk_norm: bool = False,
    head_dim: int | None = None,
    attention_scale: float | None = None,
    rope: RopeConfig | None = None,
    stored_qkv: tuple[str, ...] = QKV_PARTS,
    stored_gate_up: tuple[str, ...] = GATE_UP_PARTS,
    scales: Scales = Scales(),
) -> DecoderConfig:
    """What all families say in the same words, and what each in its own. Raises ConfigError."""
    assert scales.residual == 1.0 or not has_qk_norm, "heads are normed with the same epsilon"
    config.refuse("hidden_act", "silu")
    vocab_size = config.integer("vocab_size")
    hidden_size = config.integer("hidden_size")
    intermediate_size = config.integer("intermediate_size")
    num_heads = config.integer("num_attention_heads")
    num_kv_heads = config.integer("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise ConfigError(f"{config.path}: {num_heads} heads do not share {num_kv_heads} KV heads")
    head_dim = head_dim or config.integer("head_dim", hidden_size // num_heads)
    has_tied_embeddings = config.boolean("tie_word_embeddings", default=False)
    max_positions = config.integer("max_position_embeddings")
    rope = rope or rope_config(config)
    num_rotated = rope.num_rotated(head_dim)
    if head_dim % 2 or num_rotated % 2 or not num_rotated:
        raise ConfigError(
            f"{config.path}: {num_rotated} of a head's {head_dim} values are no pairs to rotate"
        )
    assert not (has_qk_norm and (rope.share < 1.0 or rope.has_neighbours)), "norms have an order"
    attention_size = hidden_size * head_dim * 2 * (num_heads + num_kv_heads)
    layer_size = attention_size + 3 * hidden_size * intermediate_size  # without norms and biases
    num_embeddings = 1 if has_tied_embeddings or is_classifier(architecture) else 2
    return DecoderConfig(
        architecture=architecture,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_layers=len(windows),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        attention_layers=tuple(
            AttentionLayer(
                num_heads, num_kv_heads, head_dim, attention_scale or head_dim**-0.5, window
            )
            for window in windows
        ),
        num_parameters=len(windows) * layer_size + num_embeddings * vocab_size * hidden_size,
        rms_norm_eps=config.number("rms_norm_eps", 1e-6) / scales.residual**2,
        embedding_scale=scales.embedding / scales.residual,
        logits_divisor=scales.logits_divisor,
        max_context_len=max_positions,
        max_context_limit=rope.max_context_limit(max_positions),
        rope=rope,
        has_qk_norm=has_qk_norm,
        has_qkv_bias=has_qkv_bias,
        has_output_bias=has_output_bias,
        has_mlp_bias=has_mlp_bias,
        has_tied_embeddings=has_tied_embeddings,
        stored_qkv=stored_qkv,
        stored_gate_up=stored_gate_up,
        stored_dtype=str(config.get("dtype", config.get("torch_dtype", "float32"))),
        eos_token_ids=eos_token_ids,
    )


def same_window(config: ConfigFile, window: int | None) -> tuple[int | None, ...]:
    """The same for all layers."""
    return (window,) * config.integer("num_hidden_layers")


def windows_of_types(
    config: ConfigFile, layer_types: object, window: int | None
) -> tuple[int | None, ...]:
    """`layer_types` says which layers have the window. Raises ConfigError."""
    num_layers = config.integer("num_hidden_layers")
    if (
        not isinstance(layer_types, list)
        or len(layer_types) != num_layers
        or not set(layer_types) <= set(WINDOW_OF_LAYER_TYPE)
    ):
        known = " or ".join(WINDOW_OF_LAYER_TYPE)
        raise ConfigError(
            f"{config.path}: 'layer_types' must say {known} for each of {num_layers} layers, "
            f"not {layer_types!r}"
        )
    return tuple(window if WINDOW_OF_LAYER_TYPE[each] else None for each in layer_types)
