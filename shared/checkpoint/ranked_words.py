"""Vocabularies without merges: of two neighbours those are joined whose word comes first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from shared.errors import ConfigError
from shared.gguf.tokens.bpe_tokenizer import PreTokenizer, byte_letters, byte_level_bpe


def ranked_bpe(
    file: Path,
    pre_tokenizer: PreTokenizer,
    words: Sequence[bytes],
    first_id: int,
    added: list[dict[str, Any]],
    processor: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """tokenizer.json of words by rank, whose ids count up from `first_id`, and of `added` tokens.

    Raises ConfigError, which names the file, for words that are no such vocabulary.
    """
    ranks = {word: rank for rank, word in enumerate(words)}
    if len(ranks) != len(words) or not {bytes([each]) for each in range(256)} <= ranks.keys():
        raise ConfigError(f"{file}: a word comes twice, or a byte is none")
    alphabet = byte_letters()
    texts = ["".join(alphabet[each] for each in word) for word in words]
    ids = {text: first_id + rank for rank, text in enumerate(texts)}
    for each in added:
        if each["content"] in ids:
            raise ConfigError(f"{file}: {each['content']!r} is a word, and a special token, too")
    ids |= {each["content"]: each["id"] for each in added}
    # A merge is as early as the word that it makes.
    merges = [
        [texts[ranks[word[:cut]]], texts[ranks[word[cut:]]]]
        for word in words
        for cut in _cuts(word, ranks)
    ]
    return byte_level_bpe(pre_tokenizer, added, processor, ids, merges)


def _cuts(word: bytes, ranks: dict[bytes, int]) -> Iterator[int]:
    """Where a word is two others."""
    return (cut for cut in range(1, len(word)) if word[:cut] in ranks and word[cut:] in ranks)
