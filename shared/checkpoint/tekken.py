"""Mistral's tokenizer as its makers publish it (tekken.json), in the form of tokenizer.json."""

from __future__ import annotations

import base64
import binascii
import json
from pathlib import Path
from typing import Any

from shared.checkpoint.json_file import read_json
from shared.checkpoint.ranked_words import ranked_bpe
from shared.errors import ConfigError
from shared.gguf.tokens.added_tokens import added_token, around_texts
from shared.gguf.tokens.bpe_tokenizer import PreTokenizer

TEKKEN_FILE = "tekken.json"
_BOS = "<s>"
_SPECIAL = {
    "bos_token": _BOS,
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
}


def tekken_files(path: Path) -> dict[str, bytes]:
    """tokenizer.json and tokenizer_config.json of a folder that has tekken.json.

    Raises ConfigError for a file that is not as its makers write it.
    """
    file = path / TEKKEN_FILE
    values = read_json(file, dict)
    config, entries = values.get("config"), values.get("special_tokens")
    if not isinstance(config, dict) or not isinstance(config.get("pattern"), str):
        raise ConfigError(f"{file}: 'config' has no 'pattern', by which texts are cut")
    if not isinstance(entries, list):
        raise ConfigError(
            f"{file} names no 'special_tokens': it is of an old version; take the model with "
            "tokenizer.json"
        )
    special = _special_tokens(file, entries, config.get("default_num_special_tokens"))
    num_words = None
    if config.get("default_vocab_size") is not None:
        num_words = _number(file, config, "default_vocab_size") - len(special)
    words = _words(file, values.get("vocab"), num_words)
    told = {name: text for name, text in _SPECIAL.items() if text in special}
    return {
        "tokenizer.json": _json(_tokenizer(file, config["pattern"], special, words)),
        "tokenizer_config.json": _json(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "clean_up_tokenization_spaces": False,
                **told,
            }
        ),
    }


def _special_tokens(file: Path, entries: list[Any], num_wanted: object) -> list[str]:
    """By token id; those that the file leaves out have names of their own."""
    texts: dict[object, str] = {}
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("token_str"), str):
            raise ConfigError(f"{file}: a special token has no 'token_str': {entry!r}")
        texts[entry.get("rank")] = entry["token_str"]
    num_special = len(texts) if num_wanted is None else num_wanted
    if not isinstance(num_special, int) or not texts.keys() <= {*range(num_special)}:
        raise ConfigError(
            f"{file}: special tokens have ranks {[*texts]}, which are not all below {num_special!r}"
        )
    return [texts.get(rank, f"<SPECIAL_{rank}>") for rank in range(num_special)]


def _words(file: Path, entries: object, num_wanted: int | None) -> list[bytes]:
    """By rank. Files may have more of them than the model."""
    if not isinstance(entries, list) or (num_wanted is not None and len(entries) < num_wanted):
        raise ConfigError(f"{file}: 'vocab' has not the {num_wanted} words that 'config' tells of")
    words = []
    for rank, entry in enumerate(entries[:num_wanted]):
        try:
            word = base64.b64decode(entry["token_bytes"], validate=True)
            is_next = entry.get("rank", rank) == rank
        except (AttributeError, KeyError, TypeError, binascii.Error) as exc:
            raise ConfigError(f"{file}: word {rank} has no 'token_bytes': {entry!r}") from exc
        if not word or not is_next:
            raise ConfigError(f"{file}: word {rank} is empty or out of order: {entry!r}")
        words.append(word)
    return words


def _tokenizer(file: Path, pattern: str, special: list[str], words: list[bytes]) -> dict[str, Any]:
    """Words come behind the special tokens."""
    first = _BOS if _BOS in special else None
    return ranked_bpe(
        file,
        PreTokenizer(pattern, takes_whole_words=True),
        words,
        first_id=len(special),
        added=[added_token(token_id, text) for token_id, text in enumerate(special)],
        processor=around_texts({_BOS: special.index(_BOS)} if first else {}, first, None),
    )


def _number(file: Path, config: dict[str, Any], name: str) -> int:
    value = config[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{file}: {name!r} must be a positive integer, not {value!r}")
    return value


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()
