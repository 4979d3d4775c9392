"""tokenizer.json of SentencePiece's BPE: pieces with scores, and bytes for what they lack."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shared.gguf.metadata import Metadata
from shared.gguf.tokens.added_tokens import added_tokens, post_processor
from shared.gguf.tokens.vocabulary import TokenType, Vocabulary

_SPACE = "▁"
_NUM_BYTES = 256
# Of Phi-3's special tokens, those that leave the spaces behind them.
_PHI3_KEEPS = frozenset({"<unk>", "<s>", "<|endoftext|>"})


def spm_tokenizer(metadata: Metadata, vocabulary: Vocabulary) -> dict[str, Any]:
    """Raises ConfigError."""
    scores = metadata.numbers("tokenizer.ggml.scores")
    if len(scores) < len(vocabulary.texts):
        raise metadata.error("tokenizer.ggml.scores has fewer values than there are tokens")
    vocabulary = replace(vocabulary, texts=tuple(map(_stored, vocabulary.texts)))
    pieces = vocabulary.ids
    mergeable = {
        text: scores[token_id]
        for text, token_id in pieces.items()
        if vocabulary.types[token_id] in (TokenType.NORMAL, TokenType.USER_DEFINED)
    }
    has_bytes = len(vocabulary.of_type(TokenType.BYTE)) == _NUM_BYTES
    has_prefix = metadata.flag("tokenizer.ggml.add_space_prefix", default=True)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added_tokens(vocabulary, strips_right=_strips_right(metadata, vocabulary)),
        "normalizer": _normalizer(has_prefix=has_prefix),
        "pre_tokenizer": None,
        "post_processor": post_processor(metadata, vocabulary, adds_bos=True, adds_eos=False),
        "decoder": _decoder(has_prefix=has_prefix),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": vocabulary.text(vocabulary.unk_id),
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": has_bytes,
            "ignore_merges": False,
            "vocab": pieces,
            "merges": _merges(pieces, mergeable),
        },
    }


def _stored(text: str) -> str:
    """llama.cpp keeps runs of spaces that somebody defined as they are typed."""
    return text.replace(" ", _SPACE) if text and not text.strip(" ") else text


def _merges(pieces: dict[str, int], scores: dict[str, float]) -> list[tuple[str, str]]:
    """Every pair that makes a piece, in the order of its score: as SentencePiece joins them."""
    found = []
    for text, score in scores.items():
        halves = ((text[:cut], text[cut:]) for cut in range(1, len(text)))
        pairs = [pair for pair in halves if pair[0] in pieces and pair[1] in pieces]
        pairs.sort(key=lambda pair: (pieces[pair[0]], pieces[pair[1]]))
        found += [(score, *pair) for pair in pairs]
    found.sort(key=lambda each: (each[0], len(each[1]), len(each[2])), reverse=True)
    return [(left, right) for _, left, right in found]


def _normalizer(*, has_prefix: bool) -> dict[str, Any]:
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    if not has_prefix:
        return spaces
    return {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": _SPACE}, spaces]}


def _decoder(*, has_prefix: bool) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if has_prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}


def _strips_right(metadata: Metadata, vocabulary: Vocabulary) -> frozenset[int]:
    if metadata.architecture != "phi3":
        return frozenset()
    found = vocabulary.of_type(TokenType.CONTROL)
    return frozenset(token_id for token_id, text in found if text not in _PHI3_KEEPS)
