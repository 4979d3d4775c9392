"""A GGUF file as a folder in Hugging Face format, with links to the weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shared.gguf.families import hugging_face_config
from shared.gguf.gguf_model import GgufModel, part_paths
from shared.gguf.metadata import CONFIG_SECTION, Metadata
from shared.gguf.tensor_names import tensor_sources
from shared.gguf.tokens.bpe_tokenizer import bpe_tokenizer
from shared.gguf.tokens.spm_tokenizer import spm_tokenizer
from shared.gguf.tokens.vocabulary import Vocabulary
from shared.made_folder import made_folder

_LAYOUT = 2  # of these folders: counts up when their files change
_KINDS = {"gpt2": bpe_tokenizer, "llama": spm_tokenizer}
_TEMPLATE = "tokenizer.chat_template"


def checkpoint_folder(path: Path) -> Path:
    """Makes the folder of a GGUF file, or of one part of a split one.

    Raises ConfigError, in a sentence.
    """
    parts = part_paths(path)
    return made_folder(
        "gguf", _LAYOUT, parts, lambda: checkpoint_files(GgufModel.read(path)), links=parts
    )


def checkpoint_files(model: GgufModel) -> dict[str, bytes]:
    """All but the weights, by name. Raises ConfigError for a model that cannot be served."""
    config = hugging_face_config(model)
    tensor_sources(model)  # refused now, rather than when its weights are read
    vocabulary = Vocabulary.read(model.metadata)
    if len(vocabulary.texts) > config["vocab_size"]:
        raise model.metadata.error(
            f"there are {len(vocabulary.texts)} tokens, and embeddings of {config['vocab_size']}"
        )
    ids = {
        "bos_token_id": vocabulary.bos_id,
        "eos_token_id": list(vocabulary.end_ids),
        "pad_token_id": vocabulary.pad_id,
    }
    told = {"format": model.format, "bits_per_weight": round(model.bits_per_weight, 2)}
    return {
        "config.json": _json(config | ids | {CONFIG_SECTION: told}),
        "generation_config.json": _json(_sampling(model) | ids),
        **tokenizer_files(model.metadata, vocabulary),
    }


def _sampling(model: GgufModel) -> dict[str, Any]:
    """What its makers recommend, where the file says it."""
    metadata = model.metadata
    numbers = {
        name: metadata.number(key)
        for name, key in (
            ("temperature", "general.sampling.temp"),
            ("top_p", "general.sampling.top_p"),
            ("min_p", "general.sampling.min_p"),
        )
        if key in metadata
    }
    top_k = "general.sampling.top_k"
    return numbers | ({"top_k": metadata.integer(top_k)} if top_k in metadata else {})


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, indent=2).encode()


def tokenizer_files(metadata: Metadata, vocabulary: Vocabulary) -> dict[str, bytes]:
    """The files by their names.

    Raises ConfigError for a tokenizer of a kind that is not known here.
    """
    kind = metadata.text("tokenizer.ggml.model")
    if kind not in _KINDS:
        known = " and ".join(_KINDS)
        raise metadata.error(f"tokenizer.ggml.model {kind!r} is not supported; {known} are")
    tokenizer = _KINDS[kind](metadata, vocabulary)
    return {
        "tokenizer.json": _unescaped_json(tokenizer),
        "tokenizer_config.json": _unescaped_json(_tokenizer_config(metadata, vocabulary)),
    }


def _tokenizer_config(metadata: Metadata, vocabulary: Vocabulary) -> dict[str, Any]:
    special = {
        "bos_token": vocabulary.bos_id,
        "eos_token": vocabulary.eos_id,
        "unk_token": vocabulary.unk_id,
        "pad_token": vocabulary.pad_id,
    }
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
    }
    config |= {name: vocabulary.text(value) for name, value in special.items() if value is not None}
    template = _chat_template(metadata)
    return config if template is None else config | {"chat_template": template}


def _chat_template(metadata: Metadata) -> str | list[dict[str, str]] | None:
    """One, or several by name, as tokenizer_config.json has them."""
    default = metadata.text(_TEMPLATE) if _TEMPLATE in metadata else None
    if "tokenizer.chat_templates" not in metadata:
        return default
    named = {
        name: metadata.text(f"{_TEMPLATE}.{name}")
        for name in metadata.texts("tokenizer.chat_templates")
        if f"{_TEMPLATE}.{name}" in metadata
    }
    if default is not None:
        named = {"default": default} | named
    return [{"name": name, "template": template} for name, template in named.items()]


def _unescaped_json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()
