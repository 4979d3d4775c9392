"""tokenizer.json of a byte-level tokenizer: GPT-2's kind, as Llama 3 and Qwen have it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shared.gguf.metadata import Metadata
from shared.gguf.tokens.added_tokens import added_tokens, post_processor
from shared.gguf.tokens.vocabulary import Vocabulary

_WORD_ENDS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_UPPER_BUT_HAN = rf"{_UPPER[:-1]}&&[^\p{{Han}}]]"
_LOWER_BUT_HAN = rf"{_LOWER[:-1]}&&[^\p{{Han}}]]"
_CL100K = (
    rf"{_WORD_ENDS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|"
    rf"{_SPACES}"
)
_QWEN = (
    rf"{_WORD_ENDS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_WORD_ENDS}?|"
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_WORD_ENDS}?|"
    rf"\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_KIMI = (
    rf"\p{{Han}}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER_BUT_HAN}*{_LOWER_BUT_HAN}+{_WORD_ENDS}?|"
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER_BUT_HAN}+{_LOWER_BUT_HAN}*{_WORD_ENDS}?|"
    rf"\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|"
    rf"\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)


def bpe_tokenizer(metadata: Metadata, vocabulary: Vocabulary) -> dict[str, Any]:
    """Raises ConfigError for texts that are cut in a way that is not known here."""
    pre_tokenizer = _pre_tokenizer(metadata)
    return byte_level_bpe(
        pre_tokenizer,
        added_tokens(vocabulary),
        post_processor(metadata, vocabulary, adds_bos=pre_tokenizer.adds_bos, adds_eos=False),
        vocabulary.ids,
        _merges(metadata),
    )


def byte_level_bpe(
    pre_tokenizer: PreTokenizer,
    added: list[dict[str, Any]],
    processor: dict[str, Any] | None,
    ids: dict[str, int],
    merges: list[list[str]],
) -> dict[str, Any]:
    """tokenizer.json of these parts."""
    byte_level = {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"} if pre_tokenizer.is_composed else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre_tokenizer.steps},
        "post_processor": processor,
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
            "vocab": ids,
            "merges": merges,
        },
    }


def byte_letters() -> list[str]:
    """The letter, by byte, that stands for it in a byte-level vocabulary."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(each if each in visible else next(others)) for each in range(0x100)]


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


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """What happens to a text before its words are looked up."""

    regex: str | None = None  # None: GPT-2's own
    splits_digits: bool = False  # each by itself
    is_composed: bool = False  # in Unicode's form NFC first
    takes_whole_words: bool = False  # a word that is a token is one, whatever the merges say
    adds_bos: bool = False  # unless the file says otherwise

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The steps as tokenizer.json has them."""
        found: list[dict[str, Any]] = []
        if self.splits_digits:
            found.append({"type": "Digits", "individual_digits": True})
        if self.regex is not None:
            found.append(
                {
                    "type": "Split",
                    "pattern": {"Regex": self.regex},
                    "behavior": "Isolated",
                    "invert": False,
                }
            )
        found.append(
            {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": True,
                "use_regex": self.regex is None,
            }
        )
        return found


_LLAMA3 = PreTokenizer(_CL100K, takes_whole_words=True, adds_bos=True)
QWEN2 = PreTokenizer(_QWEN, is_composed=True)
KIMI = PreTokenizer(_KIMI, takes_whole_words=True)
_GPT2 = PreTokenizer()
_STARCODER = PreTokenizer(splits_digits=True)

PRE_TOKENIZERS = {
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "dbrx": PreTokenizer(_CL100K),  # Phi-4 and Granite 4, too
    "smaug-bpe": PreTokenizer(_CL100K),
    "qwen2": QWEN2,
    "deepseek-r1-qwen": QWEN2,
    "gpt-4o": PreTokenizer(_O200K),
    "tekken": PreTokenizer(_TEKKEN, takes_whole_words=True),
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "smollm": _STARCODER,
    "starcoder": _STARCODER,
    "refact": _STARCODER,  # Granite 3, too
}
