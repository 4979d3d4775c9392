"""Mistral's own layout (params.json, consolidated weights, tekken.json) as a folder in Hugging
Face format, with links to what lies in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared.checkpoint.mistral_params import PARAMS_FILE, hugging_face_config, image_processor
from shared.checkpoint.tekken import TEKKEN_FILE, tekken_files
from shared.checkpoint.weights.checkpoint_tensors import (
    INDEX_FILE,
    NAMES_SECTION,
    PAIRS_SECTION,
    SINGLE_FILE,
    CheckpointTensors,
)
from shared.errors import ConfigError
from shared.made_folder import made_folder

_LAYOUT = 2  # of these folders: counts up when their files change
_WEIGHTS = "consolidated.safetensors"
_WEIGHT_FILES = "consolidated*.safetensors"
_CONFIG, _PROCESSOR, _TOKENIZER = "config.json", "preprocessor_config.json", "tokenizer.json"
# By a module's name in their layout; "text." is where the text model lies.
_LAYERS, _TOWER = r"(layers\.\d+)", r"vision_encoder\.(transformer\.layers\.\d+)"
_MLP = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
_MODULES = {
    "output": "lm_head",
    "tok_embeddings": "text.embed_tokens",
    "norm": "text.norm",
    rf"{_LAYERS}\.attention_norm": r"text.\1.input_layernorm",
    rf"{_LAYERS}\.ffn_norm": r"text.\1.post_attention_layernorm",
    rf"{_LAYERS}\.attention\.w([qkvo])": r"text.\1.self_attn.\2_proj",
    rf"{_LAYERS}\.feed_forward\.(gate|experts\.\d+\.w[123])": r"text.\1.block_sparse_moe.\2",
    **{rf"{_LAYERS}\.feed_forward\.{w}": rf"text.\1.mlp.{name}" for w, name in _MLP.items()},
}
_SEEING_MODULES = {
    r"vision_encoder\.(ln_pre|patch_conv)": r"model.vision_tower.\1",
    rf"{_TOWER}\.(attention_norm|ffn_norm)": r"model.vision_tower.\1.\2",
    rf"{_TOWER}\.attention\.w([qkvo])": r"model.vision_tower.\1.attention.\2_proj",
    **{
        rf"{_TOWER}\.feed_forward\.{w}": rf"model.vision_tower.\1.feed_forward.{name}"
        for w, name in _MLP.items()
    },
    r"vision_language_adapter\.w_in": "model.multi_modal_projector.linear_1",
    r"vision_language_adapter\.w_out": "model.multi_modal_projector.linear_2",
    r"patch_merger\.merging_layer": "model.multi_modal_projector.patch_merger.merging_layer",
    "pre_mm_projector_norm": "model.multi_modal_projector.norm",
}
_SUFFIXES = {"weight": "weight", "bias": "bias", "qscale_weight": "weight_scale"}
_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
_NORM = "norm.weight"


def is_mistral_folder(path: Path) -> bool:
    """Whether a folder is in their layout, and not in Hugging Face's, too."""
    if not (path / PARAMS_FILE).is_file() or any(path.glob("*.pth")):
        return False
    is_other = any((path / name).exists() for name in (SINGLE_FILE, INDEX_FILE))
    return not (path / _CONFIG).is_file() or (not is_other and _has_weights(path))


def mistral_folder(path: Path) -> Path:
    """Makes the folder of one in their layout, also before its weights are there.

    Raises ConfigError.
    """
    others = {_CONFIG, PARAMS_FILE, TEKKEN_FILE, INDEX_FILE, f"{_WEIGHTS}.index.json"}
    parts = sorted(each for each in path.iterdir() if each.is_file())
    links = [each for each in parts if each.name not in others]
    return made_folder("mistral", _LAYOUT, parts, lambda: _files(path), links)


def _files(path: Path) -> dict[str, bytes]:
    """All that is not linked to. Raises ConfigError."""
    tensors = CheckpointTensors.read(path, _WEIGHTS) if _has_weights(path) else None
    config = hugging_face_config(path, "bfloat16" if tensors is None else _dtype(tensors))
    files = {_CONFIG: _json(config)}
    if tensors is not None:
        files[INDEX_FILE] = _json(_index(tensors, config))
    if "vision_config" in config and not (path / _PROCESSOR).is_file():
        files[_PROCESSOR] = _json(image_processor(config))
    if (path / TEKKEN_FILE).is_file() and not (path / _TOKENIZER).is_file():
        files |= {
            name: content
            for name, content in tekken_files(path).items()
            if not (path / name).is_file()
        }
    return files


def _index(tensors: CheckpointTensors, config: Mapping[str, Any]) -> dict[str, Any]:
    """What `CheckpointTensors` reads. Raises ConfigError for a tensor that is not known here."""
    names = {
        name: stored_name
        for stored_name in tensors.headers
        if (name := _hugging_face_name(tensors.place, stored_name, config)) is not None
    }
    heads = {name: _num_heads(name, config) for name in names}
    return {
        "weight_map": {name: tensors.file_of_tensor[stored] for name, stored in names.items()},
        NAMES_SECTION: names,
        PAIRS_SECTION: {name: number for name, number in heads.items() if number},
    }


def _hugging_face_name(place: str, stored_name: str, config: Mapping[str, Any]) -> str | None:
    """None for scales of what is in 16 bits here, and for the tower of a model that has none here.

    Raises ConfigError for a name that is not known.
    """
    module, _, suffix = stored_name.rpartition(".")
    if suffix == "qscale_act":
        return None
    sees = "vision_config" in config
    text = "model.language_model." if sees else "model."
    for pattern, replacement in (_MODULES | _SEEING_MODULES).items():
        match = re.fullmatch(pattern, module)
        if match is None or suffix not in _SUFFIXES:
            continue
        if pattern in _SEEING_MODULES and not sees:
            return None
        name = re.sub(r"^text\.", text, match.expand(replacement))
        return f"{name}.{_SUFFIXES[suffix]}"
    raise ConfigError(f"the checkpoint in {place} has a tensor {stored_name!r}, not known here")


def _num_heads(name: str, config: Mapping[str, Any]) -> int:
    """The heads of a projection whose rows are paired; 0 for all else."""
    is_of_queries = name.endswith(".q_proj.weight")
    if not is_of_queries and not name.endswith(".k_proj.weight"):
        return 0
    if ".vision_tower." in name:
        return int(config["vision_config"]["num_attention_heads"])
    text = config.get("text_config", config)
    return int(text["num_attention_heads" if is_of_queries else "num_key_value_heads"])


def _dtype(tensors: CheckpointTensors) -> str:
    """The dtype of what is not quantised. Raises ConfigError."""
    header = tensors.headers.get(_NORM)
    if header is None or header.dtype not in _DTYPES:
        stored = "none" if header is None else header.dtype
        raise ConfigError(
            f"the checkpoint in {tensors.place} has {_NORM!r} as {stored}, not as one of "
            f"{', '.join(_DTYPES)}"
        )
    return _DTYPES[header.dtype]


def _has_weights(path: Path) -> bool:
    return any(path.glob(_WEIGHT_FILES)) or (path / f"{_WEIGHTS}.index.json").exists()


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, indent=2).encode()
