"""Writes a Llama checkpoint as a GGUF file, through the gguf package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(model: str, path: Path, dtype: str) -> None:
    """Matrices in `dtype`, norms in float32. A file that is there stays."""
    if path.exists():
        return
    folder = Path(model)
    config = json.loads((folder / "config.json").read_text())
    writer: Any = gguf.GGUFWriter(str(path), "llama")
    _add_sizes(writer, config)
    _add_vocabulary(writer, folder)
    for name, bits in _read_bfloat16(folder / "model.safetensors"):
        bits = _rotary_order(name, bits, config)
        values = (bits.astype(np.uint32) << 16).view(np.float32)
        if bits.ndim == 2 and dtype == "bfloat16":
            raw = gguf.GGMLQuantizationType.BF16
            writer.add_tensor(_gguf_name(name), bits.view(np.uint8), raw_dtype=raw)
        else:
            writer.add_tensor(_gguf_name(name), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_sizes(writer: Any, config: dict[str, Any]) -> None:
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])


def _add_vocabulary(writer: Any, folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocab: dict[str, int] = tokenizer["model"]["vocab"]
    special = {token["content"] for token in tokenizer["added_tokens"]}
    tokens = sorted(vocab, key=lambda token: vocab[token])
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([control if token in special else normal for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)


def _read_bfloat16(path: Path) -> Iterator[tuple[str, np.ndarray[Any, np.dtype[np.uint16]]]]:
    """Each tensor's bits: numpy has no bfloat16."""
    data = np.memmap(path, np.uint8, "r")
    header_len = int(data[:8].view(np.uint64)[0])
    header = json.loads(data[8 : 8 + header_len].tobytes())
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + header_len + offset for offset in entry["data_offsets"])
        # A copy: the file gives no alignment.
        bits = np.frombuffer(data[begin:end].tobytes(), np.uint16)
        yield name, bits.reshape(entry["shape"])


def _rotary_order(name: str, bits: Any, config: dict[str, Any]) -> Any:
    """llama.cpp rotates neighbours, Hugging Face's files the two halves of a head."""
    num_heads = {
        "q_proj": config["num_attention_heads"],
        "k_proj": config["num_key_value_heads"],
    }.get(name.split(".")[-2])
    if num_heads is None:
        return bits
    rows, columns = bits.shape
    halves = bits.reshape(num_heads, 2, rows // num_heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows, columns)


def _gguf_name(name: str) -> str:
    match name.split("."):
        case ["model", "embed_tokens", _]:
            return "token_embd.weight"
        case ["model", "norm", _]:
            return "output_norm.weight"
        case ["model", "layers", idx, *rest, _]:
            return f"blk.{idx}.{LAYER_NAMES['.'.join(rest)]}.weight"
    raise ValueError(f"no name in GGUF for {name!r}")
