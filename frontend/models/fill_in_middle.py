"""Prompts with a gap: how a model was trained to fill one, as its tokenizer's tokens tell."""

from __future__ import annotations

from typing import NamedTuple, Self

from tokenizers import Tokenizer

# Before what precedes the gap, before what follows it, and before what fills it.
_MARKS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma, Granite 4
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek  # noqa: RUF001
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
)
# What a model may write behind it, where another text would begin.
_ENDS = (
    "<|fim_pad|>", "<fim_pad>", "<fim-pad>", "<|file_sep|>", "<file_sep>", "<|file_separator|>",
    "<|repo_name|>", "<reponame>", "<|endoftext|>",
)  # fmt: skip


class FillInMiddle(NamedTuple):
    """Of one tokenizer. Each mark is a single token of it."""

    before_prefix: str
    before_suffix: str
    before_middle: str
    end_ids: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self | None:
        """None where no marks of a known kind are among the added tokens."""
        added = {token.content: idx for idx, token in tokenizer.get_added_tokens_decoder().items()}
        for marks in _MARKS:
            if added.keys() >= set(marks):
                ends = (*_ENDS, *marks)
                return cls(*marks, tuple(dict.fromkeys(added[end] for end in ends if end in added)))
        return None

    def prompt(self, prefix: str, suffix: str) -> str:
        """The text that the model goes on with what stands between them."""
        return f"{self.before_prefix}{prefix}{self.before_suffix}{suffix}{self.before_middle}"
