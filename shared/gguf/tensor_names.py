"""The tensors of a GGUF file by Hugging Face's names, and how they lie there otherwise."""

from __future__ import annotations

import enum
import re
from collections import defaultdict
from typing import NamedTuple

from shared.errors import ConfigError
from shared.gguf.gguf_file import GgufTensor
from shared.gguf.gguf_model import GgufModel


class Layout(enum.Enum):
    """What is to be done to a file's tensors, so that they lie as Hugging Face's do."""

    PLAIN = "as it is"
    PAIRED_ROWS = "a head's rows are in pairs, which are rotated together"
    NORM_FROM_ONE = "a norm's weights have 1 added"
    GATES_THEN_UPS = "two tensors, whose rows follow each other in each expert"
    GATES_AND_UPS = "two tensors, whose rows alternate in each expert, as columns"
    TRANSPOSED = "the last two axes are exchanged"


class TensorSource(NamedTuple):
    """What a tensor of Hugging Face's is made of."""

    tensors: tuple[GgufTensor, ...]  # gates before ups
    layout: Layout


_LAYER = re.compile(r"blk\.(\d+)\.(.+)\.(weight|bias)")
# Computed from the configuration, which was made with them in view.
_UNREAD = re.compile(r"(rope_freqs|rope_factors_(long|short)|blk\.\d+\.attn_rot_embd)\.weight")
_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_QK_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_LLAMA = _ATTENTION | _MLP | {"ffn_norm": "post_attention_layernorm"}
_GEMMA2 = (
    _ATTENTION
    | _MLP
    | {
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    }
)
_EXPERTS = {
    "ffn_gate_exps": "mlp.experts.gate_up_proj",
    "ffn_up_exps": "mlp.experts.gate_up_proj",
    "ffn_gate_up_exps": "mlp.experts.gate_up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}
_IN_LAYER = {
    "llama": _LLAMA,
    "granite": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA | _QK_NORMS,
    "qwen3moe": _ATTENTION
    | _QK_NORMS
    | _EXPERTS
    | {"ffn_norm": "post_attention_layernorm", "ffn_gate_inp": "mlp.gate"},
    "gemma2": _GEMMA2,
    "gemma3": _GEMMA2 | _QK_NORMS,
    "phi3": {
        "attn_norm": "input_layernorm",
        "attn_qkv": "self_attn.qkv_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_up": "mlp.gate_up_proj",
        "ffn_down": "mlp.down_proj",
    },
    "gpt-oss": _ATTENTION
    | {name: _EXPERTS[name] for name in ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")}
    | {
        "attn_sinks": "self_attn.sinks",
        "post_attention_norm": "post_attention_layernorm",
        "ffn_gate_inp": "mlp.router",
    },
}
# Parameters of their own right, which "weight" does not end.
_BARE = re.compile(r"self_attn\.sinks|mlp\.experts\..+")


def tensor_sources(model: GgufModel) -> dict[str, TensorSource]:
    """The tensors by Hugging Face's names.

    Raises ConfigError, which names tensors that nothing would read.
    """
    architecture = model.metadata.architecture
    num_layers = model.metadata.integer(f"{architecture}.block_count")
    found: dict[str, list[GgufTensor]] = defaultdict(list)
    unknown = []
    # By name, `gate` comes before `up`; both at once and one alone would be too many.
    for name, tensor in sorted(model.tensors.items()):
        ours = _name(architecture, name, num_layers)
        if ours is not None and len(found[ours]) < 2:
            found[ours].append(tensor)
        elif not _UNREAD.fullmatch(name):
            unknown.append(name)
    if unknown:
        more = f", and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise ConfigError(
            f"{model.paths[0]} has the tensor {unknown[0]!r}{more}, which a {architecture} has not"
        )
    return {
        name: TensorSource(tuple(tensors), _layout(architecture, name, len(tensors)))
        for name, tensors in found.items()
    }


def _name(architecture: str, name: str, num_layers: int) -> str | None:
    if name in _TOP:
        return _TOP[name]
    match = _LAYER.fullmatch(name)
    if match is None or int(match[1]) >= num_layers or match[2] not in _IN_LAYER[architecture]:
        return None
    ours = _IN_LAYER[architecture][match[2]]
    if not _BARE.fullmatch(ours):
        ours += f".{match[3]}"
    elif match[3] == "bias":
        ours += "_bias"
    return f"model.layers.{match[1]}.{ours}"


def _layout(architecture: str, name: str, num_tensors: int) -> Layout:
    is_gpt_oss = architecture == "gpt-oss"
    if architecture.startswith("gemma") and name.endswith("norm.weight"):
        return Layout.NORM_FROM_ONE
    if architecture in ("llama", "granite") and re.search(r"\.[qk]_proj\.", name):
        return Layout.PAIRED_ROWS
    if num_tensors == 2:
        return Layout.GATES_AND_UPS if is_gpt_oss else Layout.GATES_THEN_UPS
    if is_gpt_oss and name.endswith("experts.down_proj"):
        return Layout.TRANSPOSED
    return Layout.PLAIN
