"""The tokens that stand for what a model sees."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared.checkpoint.json_file import read_json
from shared.checkpoint.vision.vision_text import text_config
from shared.errors import ConfigError


def image_token_id(path: Path, config: dict[str, Any], default: int | None = None) -> int:
    """As config.json names it; `default` is that of its class. Raises ConfigError."""
    token_id = config.get("image_token_index", config.get("image_token_id", default))
    text = text_config(config)
    vocab_size = text.get("vocab_size", config.get("vocab_size"))
    if not isinstance(token_id, int) or not isinstance(vocab_size, int):
        raise ConfigError(f"{path}/config.json names no image_token_index, or no vocab_size")
    if not 0 <= token_id < vocab_size:
        raise ConfigError(
            f"{path}/config.json: image_token_index={token_id} is beyond vocab_size={vocab_size}"
        )
    return token_id


def image_words(path: Path, defaults: Mapping[str, str]) -> list[str]:
    """What stands for images in rendered chats, by tokenizer_config.json's names."""
    values = read_json(path / "tokenizer_config.json", dict, {})
    extra = values.get("extra_special_tokens")
    values = {**(extra if isinstance(extra, dict) else {}), **values}
    return [
        named if isinstance(named := values.get(name), str) else default
        for name, default in defaults.items()
    ]


def added_ids(path: Path, *words: str) -> list[int]:
    """The ids of tokens beside the vocabulary, which the tokenizer's files name. Raises
    ConfigError.
    """
    added = read_json(path / "tokenizer_config.json", dict, {}).get("added_tokens_decoder")
    named = added if isinstance(added, dict) else {}
    ids = {each.get("content"): int(token_id) for token_id, each in named.items()}
    if not set(words) <= ids.keys():
        listed = read_json(path / "tokenizer.json", dict, {}).get("added_tokens") or []
        ids |= {each.get("content"): each.get("id") for each in listed}
    for word in words:
        if not isinstance(ids.get(word), int):
            raise ConfigError(f"{path}: the tokenizer has no token {word!r}, which images need")
    return [ids[word] for word in words]
