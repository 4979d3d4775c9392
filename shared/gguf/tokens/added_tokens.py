"""Parts of tokenizer.json that all kinds of tokenizers share."""

from __future__ import annotations

from typing import Any

from shared.gguf.metadata import Metadata
from shared.gguf.tokens.vocabulary import TokenType, Vocabulary


def added_tokens(
    vocabulary: Vocabulary, *, strips_right: frozenset[int] = frozenset()
) -> list[dict[str, Any]]:
    """The tokens that are found in a text before it is cut.

    `strips_right`: ids that take spaces.
    """
    found = vocabulary.of_type(TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN)
    return [
        added_token(
            token_id,
            text,
            strips_right=token_id in strips_right,
            is_special=vocabulary.types[token_id] != TokenType.USER_DEFINED,
        )
        for token_id, text in found
    ]


def added_token(
    token_id: int, text: str, *, strips_right: bool = False, is_special: bool = True
) -> dict[str, Any]:
    """One that is found as it stands. `strips_right`: with the spaces behind it."""
    return {
        "id": token_id,
        "content": text,
        "single_word": False,
        "lstrip": False,
        "rstrip": strips_right,
        "normalized": False,
        "special": is_special,
    }


def post_processor(
    metadata: Metadata, vocabulary: Vocabulary, *, adds_bos: bool, adds_eos: bool
) -> dict[str, Any] | None:
    """What stands around each text; the arguments are for a file that does not say."""
    adds_bos = metadata.flag("tokenizer.ggml.add_bos_token", default=adds_bos)
    adds_eos = metadata.flag("tokenizer.ggml.add_eos_token", default=adds_eos)
    first = vocabulary.bos_id if adds_bos else None
    last = vocabulary.eos_id if adds_eos else None
    special = {
        vocabulary.texts[token_id]: token_id for token_id in (first, last) if token_id is not None
    }
    return around_texts(special, vocabulary.text(first), vocabulary.text(last))


def around_texts(
    special: dict[str, int], first: str | None, last: str | None
) -> dict[str, Any] | None:
    """`special`: the ids of those that stand before or behind each text."""
    if first is None and last is None:
        return None
    return {
        "type": "TemplateProcessing",
        "single": _around("A", 0, first, last),
        "pair": [*_around("A", 0, first, last), *_around("B", 1, first, last)],
        "special_tokens": {
            text: {"id": text, "ids": [token_id], "tokens": [text]}
            for text, token_id in special.items()
        },
    }


def _around(name: str, type_id: int, first: str | None, last: str | None) -> list[dict[str, Any]]:
    def token(text: str | None) -> list[dict[str, Any]]:
        return [] if text is None else [{"SpecialToken": {"id": text, "type_id": type_id}}]

    return [*token(first), {"Sequence": {"id": name, "type_id": type_id}}, *token(last)]
