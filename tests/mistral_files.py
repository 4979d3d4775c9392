"""Checkpoints of Hugging Face's layout, written as Mistral publishes its models."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from shared.checkpoint.model_files import local_checkpoint

_NAMES = (
    (r"^(model\.)?vision_tower\.", "vision_encoder."),
    (r"^(model\.)?multi_modal_projector\.patch_merger\.", "patch_merger."),
    (r"^(model\.)?multi_modal_projector\.norm\.", "pre_mm_projector_norm."),
    (r"^(model\.)?multi_modal_projector\.linear_1\.", "vision_language_adapter.w_in."),
    (r"^(model\.)?multi_modal_projector\.linear_2\.", "vision_language_adapter.w_out."),
    (r"^(language_model\.)?lm_head\.", "output."),
    (r"^(model\.language_model|language_model\.model|model)\.", ""),
    (r"^embed_tokens\.", "tok_embeddings."),
    (r"\.input_layernorm\.", ".attention_norm."),
    (r"\.post_attention_layernorm\.", ".ffn_norm."),
    (r"\.(self_attn|attention)\.([qkvo])_proj\.", r".attention.w\2."),
    (r"\.(mlp|feed_forward)\.gate_proj\.", ".feed_forward.w1."),
    (r"\.(mlp|feed_forward)\.down_proj\.", ".feed_forward.w2."),
    (r"\.(mlp|feed_forward)\.up_proj\.", ".feed_forward.w3."),
    (r"\.block_sparse_moe\.", ".feed_forward."),
    (r"\.weight_scale_inv$", ".qscale_weight"),
)


def write_mistral(
    path: Path, folder: Path, params: Mapping[str, Any], *, num_files: int = 1
) -> Path:
    """`params` are what params.json says beside the sizes. Other files of `path` are copied."""
    config = json.loads((path / "config.json").read_text())
    text, vision = config.get("text_config", config), config.get("vision_config", {})
    folder.mkdir()
    sizes: dict[str, Any] = {
        "dim": text["hidden_size"],
        "hidden_dim": text["intermediate_size"],
        "n_layers": text["num_hidden_layers"],
        "n_heads": text["num_attention_heads"],
        "n_kv_heads": text["num_key_value_heads"],
        "head_dim": text["head_dim"],
        "vocab_size": text["vocab_size"],
        "norm_eps": text["rms_norm_eps"],
        "max_seq_len": text["max_position_embeddings"],
    }
    tensors = {}
    for name, tensor in load_file(path / "model.safetensors").items():
        heads = 0
        if re.search(r"[qk]_proj\.weight$", name):
            key = "num_attention_heads"
            if ".k_proj." in name and "vision_tower" not in name:
                key = "num_key_value_heads"
            heads = (vision if "vision_tower" in name else text)[key]
        tensors[_stored_name(name)] = _paired(tensor, heads) if heads else tensor
    sizes["tied_embeddings"] = "output.weight" not in tensors
    (folder / "params.json").write_text(json.dumps({**sizes, **params}))
    _save(tensors, folder, num_files)
    for file in path.iterdir():
        if file.suffix != ".safetensors" and not file.name.endswith("config.json"):
            shutil.copy(file, folder)
    return folder


def read_folder(folder: Path) -> Path:
    """What is read of a folder in either layout; what is made of it lies beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder.parent / "cache"))
        return local_checkpoint(folder)


def _stored_name(name: str) -> str:
    for pattern, replacement in _NAMES:
        name = re.sub(pattern, replacement, name)
    return name


def _paired(rows: torch.Tensor, num_heads: int) -> torch.Tensor:
    """The two halves of a head in turns."""
    return torch.cat(
        [torch.stack(head.chunk(2), dim=1).flatten(0, 1) for head in rows.chunk(num_heads)]
    )


def _save(tensors: Mapping[str, torch.Tensor], folder: Path, num_files: int) -> None:
    if num_files == 1:
        save_file({**tensors}, folder / "consolidated.safetensors")
        return
    names = [f"consolidated-{idx + 1:05}-of-{num_files:05}.safetensors" for idx in range(num_files)]
    file_of = {name: names[idx % num_files] for idx, name in enumerate(tensors)}
    for each in names:
        save_file({name: tensors[name] for name in tensors if file_of[name] == each}, folder / each)
    index = {"metadata": {}, "weight_map": file_of}
    (folder / "consolidated.safetensors.index.json").write_text(json.dumps(index))
