"""Whether weights can be served, as far as the heads of their files tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.checkpoint.formats.quantization_files import read_quantization
from shared.checkpoint.formats.stored_heads import StoredHeads, text_names
from shared.checkpoint.json_file import read_json
from shared.checkpoint.weights.checkpoint_tensors import CheckpointTensors
from shared.checkpoint.weights.weight_files import check_weights
from shared.gguf.gguf_model import holds_gguf


def check_served_weights(path: Path) -> None:
    """Raises ConfigError, as a worker does, for files that are damaged, quantised by a tool that we
    do not know, or without a word, and for tensors of other shapes or types than their format and
    config.json say.
    """
    check_weights(path)
    quantization = read_quantization(path)
    if holds_gguf(path):
        return
    heads = CheckpointTensors.read(path)
    stored = StoredHeads.of(text_names(path, heads) or heads, quantization)
    for name, shape in decoder_shapes(read_json(path / "config.json", dict)):
        stored.find(name, shape)


Shapes = Iterator[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class _Family:
    """What the engine's configuration of the same family reads of config.json."""

    bias_key: str = ""  # says whether attention has biases
    mlp_bias_key: str = ""
    has_qkv_bias: bool = False
    has_head_norms: bool = False
    head_dim: int | None = None  # where config.json names none; else by hidden_size


_LLAMA = _Family(bias_key="attention_bias", mlp_bias_key="mlp_bias")
_QWEN3 = _Family(bias_key="attention_bias", has_head_norms=True, head_dim=128)
_FAMILIES: Mapping[str, _Family] = {
    "Llama": _LLAMA,
    "Mistral": _Family(),
    "Qwen2": _Family(has_qkv_bias=True),
    "Qwen3": _QWEN3,
}
_HEAD = "ForCausalLM"


def decoder_shapes(config: Mapping[str, Any]) -> Shapes:
    """Names and shapes in the order in which the engine reads them; nothing for other families,
    and where config.json lacks a number.
    """
    architectures = config.get("architectures")
    name = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    family = _FAMILIES.get(name.removesuffix(_HEAD).removesuffix("Model"))
    sizes = _sizes(config, family) if family is not None else None
    if family is None or sizes is None:
        return
    embeddings = (sizes.vocab_size, sizes.hidden_size)
    yield "model.embed_tokens.weight", embeddings
    for layer in range(sizes.num_layers):
        yield from _layer(f"model.layers.{layer}.", config, family, sizes)
    yield "model.norm.weight", (sizes.hidden_size,)
    if name.endswith(_HEAD) and config.get("tie_word_embeddings") is not True:
        yield "lm_head.weight", embeddings


@dataclass(frozen=True, slots=True)
class _Sizes:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    head_dim: int
    attention_size: int
    kv_size: int


def _sizes(config: Mapping[str, Any], family: _Family) -> _Sizes | None:
    """None where one is missing: the engine says which."""

    def number(key: str, default: int | None = None) -> int | None:
        value = config.get(key, default)
        is_size = isinstance(value, int) and not isinstance(value, bool) and value > 0
        return value if is_size else None

    hidden_size, num_heads = number("hidden_size"), number("num_attention_heads")
    if hidden_size is None or num_heads is None:
        return None
    head_dim = number("head_dim", family.head_dim or hidden_size // num_heads)
    num_kv_heads = number("num_key_value_heads", num_heads)
    vocab_size, num_layers = number("vocab_size"), number("num_hidden_layers")
    intermediate_size = number("intermediate_size")
    if not (head_dim and num_kv_heads and vocab_size and num_layers and intermediate_size):
        return None
    return _Sizes(
        vocab_size,
        hidden_size,
        intermediate_size,
        num_layers,
        head_dim,
        num_heads * head_dim,
        num_kv_heads * head_dim,
    )


def _layer(prefix: str, config: Mapping[str, Any], family: _Family, sizes: _Sizes) -> Shapes:
    hidden_size, attention_size = sizes.hidden_size, sizes.attention_size
    has_bias = config.get(family.bias_key) is True
    qkv = {"q_proj": attention_size, "k_proj": sizes.kv_size, "v_proj": sizes.kv_size}
    up = dict.fromkeys(("gate_proj", "up_proj"), sizes.intermediate_size)
    attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
    yield from _linears(attention, qkv, hidden_size, has_bias=has_bias or family.has_qkv_bias)
    if family.has_head_norms:
        for norm in ("q_norm", "k_norm"):
            yield f"{attention}{norm}.weight", (sizes.head_dim,)
    yield from _linears(attention, {"o_proj": hidden_size}, attention_size, has_bias=has_bias)
    has_bias = config.get(family.mlp_bias_key) is True
    yield from _linears(mlp, up, hidden_size, has_bias=has_bias)
    yield from _linears(mlp, {"down_proj": hidden_size}, sizes.intermediate_size, has_bias=has_bias)
    for norm in ("input_layernorm", "post_attention_layernorm"):
        yield f"{prefix}{norm}.weight", (hidden_size,)


def _linears(prefix: str, sizes: Mapping[str, int], in_features: int, *, has_bias: bool) -> Shapes:
    for module, size in sizes.items():
        yield f"{prefix}{module}.weight", (size, in_features)
    if has_bias:
        for module, size in sizes.items():
            yield f"{prefix}{module}.bias", (size,)
