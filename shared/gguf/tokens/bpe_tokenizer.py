"""tokenizer.json of a byte-level tokenizer: GPT-2's kind, as Llama 3 and Qwen have it."""

from __future__ import annotations

from typing import Any

from shared.gguf.metadata import Metadata
from shared.gguf.tokens.added_tokens import added_tokens, post_processor
from shared.gguf.tokens.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from shared.gguf.tokens.vocabulary import Vocabulary


def bpe_tokenizer(metadata: Metadata, vocabulary: Vocabulary) -> dict[str, Any]:
    """Raises ConfigError for texts that are cut in a way that is not known here."""
    pre_tokenizer = _pre_tokenizer(metadata)
    byte_level = {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added_tokens(vocabulary),
        "normalizer": {"type": "NFC"} if pre_tokenizer.is_composed else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre_tokenizer.steps},
        "post_processor": post_processor(
            metadata, vocabulary, adds_bos=pre_tokenizer.adds_bos, adds_eos=False
        ),
        "decoder": {"type": "ByteLevel"} | byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre_tokenizer.takes_whole_words,
            "vocab": vocabulary.ids,
            "merges": _merges(metadata),
        },
    }


def _pre_tokenizer(metadata: Metadata) -> PreTokenizer:
    name = metadata.text("tokenizer.ggml.pre", "default")
    if name not in PRE_TOKENIZERS:
        raise metadata.error(
            f"tokenizer.ggml.pre {name!r} is not known here: how it cuts texts would be a guess; "
            f"known are {', '.join(PRE_TOKENIZERS)}"
        )
    return PRE_TOKENIZERS[name]


def _merges(metadata: Metadata) -> list[list[str]]:
    """Pairs, as they are in tokenizer.json. Raises ConfigError."""
    pairs = [merge.split(" ") for merge in metadata.texts("tokenizer.ggml.merges")]
    wrong = next((pair for pair in pairs if len(pair) != 2), None)
    if wrong is not None:
        raise metadata.error(f"tokenizer.ggml.merges has {' '.join(wrong)!r}, which is no pair")
    return pairs
