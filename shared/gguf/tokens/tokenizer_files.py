"""The tokenizer that is in a GGUF file, as the files of a Hugging Face checkpoint."""

from __future__ import annotations

import json
from typing import Any

from shared.gguf.metadata import Metadata
from shared.gguf.tokens.bpe_tokenizer import bpe_tokenizer
from shared.gguf.tokens.spm_tokenizer import spm_tokenizer
from shared.gguf.tokens.vocabulary import Vocabulary

_KINDS = {"gpt2": bpe_tokenizer, "llama": spm_tokenizer}
_TEMPLATE = "tokenizer.chat_template"


def tokenizer_files(metadata: Metadata, vocabulary: Vocabulary) -> dict[str, bytes]:
    """By file name. Raises ConfigError for a tokenizer of a kind that is not known here."""
    kind = metadata.text("tokenizer.ggml.model")
    if kind not in _KINDS:
        known = " and ".join(_KINDS)
        raise metadata.error(f"tokenizer.ggml.model {kind!r} is not supported; {known} are")
    tokenizer = _KINDS[kind](metadata, vocabulary)
    return {
        "tokenizer.json": _json(tokenizer),
        "tokenizer_config.json": _json(_tokenizer_config(metadata, vocabulary)),
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


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()
