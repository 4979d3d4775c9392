"""Writes checkpoints as GGUF files, as llama.cpp's converter does, with gguf-py's writer."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from shared.gguf.checkpoint_folder import checkpoint_folder

Values = NDArray[np.float32]
Choose = Callable[[str, Values], gguf.GGMLQuantizationType]

_ARCHITECTURES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "phi3": "phi3",
    "gpt_oss": "gpt-oss",
    "granite": "granite",
}
_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.gate": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp",
    "input_layernorm": "attn_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
F32 = gguf.GGMLQuantizationType.F32
SMALL_VOCAB_SIZE = 260


def stored_folder(file: Path) -> Path:
    """The folder that stands for a GGUF file, in a cache beside it.

    The engine's cache stays where it is: in an empty one it compiles its C++ anew.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(file.parent / "cache"))
        return checkpoint_folder(file)


def all_f32(name: str, values: Values) -> gguf.GGMLQuantizationType:
    return F32


def matrices_as(kind: gguf.GGMLQuantizationType) -> Choose:
    """Of `kind`, where its blocks fill the rows; the rest in float32."""
    block_size = gguf.GGML_QUANT_SIZES[kind][0]

    def choose(name: str, values: Values) -> gguf.GGMLQuantizationType:
        return kind if values.ndim > 1 and values.shape[-1] % block_size == 0 else F32

    return choose


def write_gguf(
    folder: Path,
    path: Path,
    choose: Choose = all_f32,
    *,
    metadata: Callable[[Any], None] | None = None,
    part_tensors: int = 0,
) -> Path:
    """The model in `folder`, with a vocabulary of bytes unless `metadata` adds another.

    `part_tensors`: how many a part of a split file has; then `path` names the first part.
    """
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    config = model.config
    architecture = _ARCHITECTURES[config.model_type]
    stem = path.with_name(path.name.removesuffix("-00001-of-00003.gguf"))
    target = f"{stem}.gguf" if part_tensors else str(path)
    writer: Any = gguf.GGUFWriter(target, architecture, split_max_tensors=part_tensors)
    _add_sizes(writer, config)
    (metadata or add_byte_vocabulary(config.vocab_size))(writer)
    for name, values in _rope_tensors(config):
        writer.add_tensor(name, values)
    for name, values in _tensors(model, architecture):
        kind = choose(name, values)
        values = np.ascontiguousarray(values)
        if kind == F32:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_small_llama(
    path: Path, change: Callable[[Any], None] | None = None, name: str = "llama"
) -> Path:
    """A llama of one layer, its weights all ones; `change` adds to it."""
    writer: Any = gguf.GGUFWriter(str(path), name)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    add_byte_vocabulary(SMALL_VOCAB_SIZE)(writer)
    shapes = {
        "token_embd": (SMALL_VOCAB_SIZE, 32),
        "output_norm": (32,),
        "blk.0.attn_norm": (32,),
        "blk.0.attn_q": (32, 32),
        "blk.0.attn_k": (16, 32),
        "blk.0.attn_v": (16, 32),
        "blk.0.attn_output": (32, 32),
        "blk.0.ffn_norm": (32,),
        "blk.0.ffn_gate": (64, 32),
        "blk.0.ffn_up": (64, 32),
        "blk.0.ffn_down": (32, 64),
    }
    for tensor, shape in shapes.items():
        writer.add_tensor(f"{tensor}.weight", np.ones(shape, np.float32))
    if change is not None:
        change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_byte_vocabulary(vocab_size: int) -> Callable[[Any], None]:
    """GPT-2's alphabet after two special tokens, then words that nothing makes."""
    from tokenizers import pre_tokenizers

    def add(writer: Any) -> None:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokens = ["<|begin|>", "<|finish|>", *alphabet]
        tokens += [f"word{idx}" for idx in range(vocab_size - len(tokens))]
        control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(tokens[:vocab_size])
        writer.add_token_types([control if idx < 2 else normal for idx in range(vocab_size)])
        writer.add_token_merges([f"{alphabet[0]} {alphabet[1]}"])
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(1)

    return add


def add_tokenizer(folder: Path, pre: str) -> Callable[[Any], None]:
    """A byte-level one, from the files of a checkpoint."""

    def add(writer: Any) -> None:
        told = json.loads((folder / "tokenizer.json").read_text())
        vocab: dict[str, int] = told["model"]["vocab"]
        special = {each["content"] for each in told["added_tokens"]}
        tokens = sorted(vocab, key=lambda token: vocab[token])
        control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        writer.add_token_types([control if each in special else normal for each in tokens])
        writer.add_token_merges([" ".join(merge) for merge in told["model"]["merges"]])
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(1)
        writer.add_add_bos_token(True)
        writer.add_chat_template((folder / "chat_template.jinja").read_text())

    return add


def _add_sizes(writer: Any, config: Any) -> None:
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    _add_rope_scaling(writer, config, rope)
    _add_family(writer, config)


def _add_rope_scaling(writer: Any, config: Any, rope: Mapping[str, Any]) -> None:
    match rope["rope_type"]:
        case "linear":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(rope["factor"])
        case "yarn":
            writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
            writer.add_rope_scaling_factor(rope["factor"])
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        case "longrope":
            writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)


def _add_family(writer: Any, config: Any) -> None:
    match config.model_type:
        case "qwen3_moe":
            writer.add_expert_count(config.num_experts)
            writer.add_expert_used_count(config.num_experts_per_tok)
            writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        case "gpt_oss":
            writer.add_expert_count(config.num_local_experts)
            writer.add_expert_used_count(config.num_experts_per_tok)
            writer.add_expert_feed_forward_length(config.intermediate_size)
            writer.add_sliding_window(config.sliding_window)
        case "gemma2":
            writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
            writer.add_final_logit_softcapping(config.final_logit_softcapping)
            writer.add_sliding_window(config.sliding_window)
        case "gemma3_text":
            writer.add_sliding_window(config.sliding_window)
        case "phi3":
            writer.add_sliding_window(config.sliding_window or 0)
        case "granite":
            writer.add_attention_scale(config.attention_multiplier)
            writer.add_embedding_scale(config.embedding_multiplier)
            writer.add_residual_scale(config.residual_multiplier)
            writer.add_logit_scale(config.logits_scaling)


def _rope_tensors(config: Any) -> Iterator[tuple[str, Values]]:
    rope = config.rope_parameters
    match rope.get("rope_type"):
        case "longrope":
            for kind in ("long", "short"):
                factors = np.array(rope[f"{kind}_factor"], np.float32)
                yield f"rope_factors_{kind}.weight", factors
        case "llama3":
            yield "rope_freqs.weight", _llama3_factors(config, rope)


def _llama3_factors(config: Any, rope: Mapping[str, Any]) -> Values:
    dim = config.head_dim
    freqs = 1.0 / (rope["rope_theta"] ** (np.arange(0, dim, 2, dtype=np.float32) / dim))
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    trained_len, factor = rope["original_max_position_embeddings"], rope["factor"]
    found = []
    for freq in freqs:
        wavelen = 2 * math.pi / freq
        if wavelen < trained_len / high:
            found.append(1.0)
        elif wavelen > trained_len / low:
            found.append(factor)
        else:
            smooth = (trained_len / wavelen - low) / (high - low)
            found.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(found, np.float32)


def _tensors(model: Any, architecture: str) -> Iterator[tuple[str, Values]]:
    is_tied = model.config.tie_word_embeddings
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and is_tied:
            continue
        yield from _converted(name, tensor.numpy(), architecture, model.config)


def _converted(
    name: str, values: Values, architecture: str, config: Any
) -> Iterator[tuple[str, Values]]:
    if architecture.startswith("gemma") and name.endswith("norm.weight"):
        values = values + np.float32(1)
    match name.split("."):
        case ["model", "embed_tokens", _]:
            yield "token_embd.weight", values
        case ["model", "norm", _]:
            yield "output_norm.weight", values
        case ["lm_head", _]:
            yield "output.weight", values
        case ["model", "layers", idx, *rest]:
            for inner, part in _in_layer(".".join(rest), values, architecture, config):
                yield f"blk.{idx}.{inner}", part


def _in_layer(
    name: str, values: Values, architecture: str, config: Any
) -> Iterator[tuple[str, Values]]:
    if name == "self_attn.sinks":
        yield "attn_sinks.weight", values
    elif name.startswith("mlp.experts."):
        yield from _experts(name.removeprefix("mlp.experts."), values, architecture)
    else:
        stem, _, end = name.rpartition(".")
        if stem == "post_attention_layernorm":
            has_more = architecture.startswith("gemma") or architecture == "gpt-oss"
            ours = "post_attention_norm" if has_more else "ffn_norm"
        else:
            ours = _NAMES[stem]
        if architecture in ("llama", "granite") and ours in ("attn_q", "attn_k"):
            is_query = ours == "attn_q"
            num_heads = config.num_attention_heads if is_query else config.num_key_value_heads
            halves = values.reshape(num_heads, 2, values.shape[0] // num_heads // 2, -1)
            values = halves.swapaxes(1, 2).reshape(values.shape)
        yield f"{ours}.{end}", values


def _experts(name: str, values: Values, architecture: str) -> Iterator[tuple[str, Values]]:
    if architecture == "gpt-oss":
        end = "bias" if name.endswith("_bias") else "weight"
        if end == "weight":
            values = values.swapaxes(-1, -2)
        if name.startswith("down"):
            yield f"ffn_down_exps.{end}", values
        else:
            yield f"ffn_gate_exps.{end}", values[:, ::2]
            yield f"ffn_up_exps.{end}", values[:, 1::2]
    elif name == "down_proj":
        yield "ffn_down_exps.weight", values
    else:
        gates, ups = np.split(values, 2, axis=1)
        yield "ffn_gate_exps.weight", gates
        yield "ffn_up_exps.weight", ups
