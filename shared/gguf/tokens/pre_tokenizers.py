"""How families of byte-level tokenizers cut texts, by the names that GGUF files have for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_WORD_ENDS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
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
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|"
    rf"\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)


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
        """As tokenizer.json has them."""
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
_QWEN2 = PreTokenizer(_QWEN, is_composed=True)
_GPT2 = PreTokenizer()
_STARCODER = PreTokenizer(splits_digits=True)

PRE_TOKENIZERS = {
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "dbrx": PreTokenizer(_CL100K),  # Phi-4 and Granite 4, too
    "smaug-bpe": PreTokenizer(_CL100K),
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "gpt-4o": PreTokenizer(_O200K),
    "tekken": PreTokenizer(_TEKKEN, takes_whole_words=True),
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "smollm": _STARCODER,
    "starcoder": _STARCODER,
    "refact": _STARCODER,  # Granite 3, too
}
