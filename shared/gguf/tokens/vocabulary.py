"""The tokens of a GGUF file: their texts, what each is for, and which of them begin and end."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Self

from shared.gguf.metadata import Metadata

_PREFIX = "tokenizer.ggml"


class TokenType(enum.IntEnum):
    """The types of tokens as llama.cpp numbers them."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# SentencePiece's own, where the file does not say.
_SPM_IDS = {"bos": 1, "eos": 2, "unknown": 0}
# Tokens that end an answer, whatever the file says of them: as llama.cpp knows them.
_END_TEXTS = frozenset(
    {
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "</s>",
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "<|end_of_text|>",
        "<eos>",
        "<｜end▁of▁sentence｜>",  # noqa: RUF001 - DeepSeek writes it so
    }
)
# With both of these, `<|end|>` ends a message, and not the answer.
_HARMONY_ENDS = {"<|return|>", "<|call|>"}


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens by their ids. An id that stands for nothing (`UNUSED`) has a text all the same."""

    texts: tuple[str, ...]
    types: tuple[TokenType, ...]
    bos_id: int | None
    eos_id: int | None
    unk_id: int | None
    pad_id: int | None
    end_ids: tuple[int, ...]  # of any token that ends an answer, `eos_id` first

    @classmethod
    def read(cls, metadata: Metadata) -> Self:
        """Raises ConfigError."""
        texts = metadata.texts(f"{_PREFIX}.tokens")
        types = _types(metadata, texts)
        bos_id, eos_id, unk_id, pad_id = (
            _special_id(metadata, name, len(texts)) for name in ("bos", "eos", "unknown", "padding")
        )
        return cls(
            texts=tuple(texts),
            types=types,
            bos_id=bos_id,
            eos_id=eos_id,
            unk_id=unk_id,
            pad_id=pad_id,
            end_ids=_end_ids(metadata, texts, types, eos_id),
        )

    def text(self, token_id: int | None) -> str | None:
        return None if token_id is None else self.texts[token_id]

    @property
    def ids(self) -> dict[str, int]:
        """The ids of all tokens that stand for something, by their texts."""
        used = (each for each in TokenType if each != TokenType.UNUSED)
        return {text: token_id for token_id, text in self.of_type(*used)}

    def of_type(self, *types: TokenType) -> list[tuple[int, str]]:
        """Ids and texts."""
        return [
            (token_id, text)
            for token_id, (text, kind) in enumerate(zip(self.texts, self.types, strict=True))
            if kind in types
        ]


def _special_id(metadata: Metadata, name: str, num_tokens: int) -> int | None:
    """The token of a role; None where there is none, or one beyond the vocabulary."""
    key = f"{_PREFIX}.{name}_token_id"
    token_id = metadata.integer(key) if key in metadata else None
    if token_id is None and metadata.text(f"{_PREFIX}.model") == "llama":
        token_id = _SPM_IDS.get(name)
    return token_id if token_id is not None and token_id < num_tokens else None


def _types(metadata: Metadata, texts: list[str]) -> tuple[TokenType, ...]:
    """All are normal where the file does not say; what has no text is for nothing."""
    key = f"{_PREFIX}.token_type"
    if key not in metadata:
        return tuple(TokenType.NORMAL if text else TokenType.UNUSED for text in texts)
    numbers = metadata.numbers(key)
    known = {float(each) for each in TokenType}
    if len(numbers) < len(texts) or not known.issuperset(numbers):
        raise metadata.error(f"{key} does not give each of {len(texts)} tokens a type of its list")
    return tuple(
        TokenType(int(number)) if text else TokenType.UNUSED
        for text, number in zip(texts, numbers, strict=False)
    )


def _end_ids(
    metadata: Metadata, texts: list[str], types: tuple[TokenType, ...], eos_id: int | None
) -> tuple[int, ...]:
    named = [eos_id, *(_special_id(metadata, name, len(texts)) for name in ("eot", "eom"))]
    marked = (TokenType.CONTROL, TokenType.USER_DEFINED)
    known = {
        text: token_id
        for token_id, text in enumerate(texts)
        if text in _END_TEXTS and types[token_id] in marked
    }
    if known.keys() >= _HARMONY_ENDS:
        known.pop("<|end|>", None)
    found = [token_id for token_id in (*named, *known.values()) if token_id is not None]
    return tuple(dict.fromkeys(found))
