"""What a tokenizer's files say of it, and what its tokens tell of gaps in prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from tokenizers import Tokenizer

from shared.checkpoint.tokenizer_bundle import TokenizerBundle

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token")
# Before what precedes the gap, before what follows it, and before what fills it.
_MARKS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma, Granite 4
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek  # noqa: RUF001
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
)
# Before the name of a project, and before each file of it; the first that a tokenizer has.
_PROJECTS = ("<|repo_name|>", "<repo_name>", "<reponame>")
_FILES = ("<|file_sep|>", "<file_sep>", "<|file_separator|>")
# What a model may write behind it, where another text would begin.
_ENDS = (
    "<|fim_pad|>", "<fim_pad>", "<fim-pad>", "<|file_sep|>", "<file_sep>", "<|file_separator|>",
    "<|repo_name|>", "<repo_name>", "<reponame>", "<|endoftext|>",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """What a tokenizer's files say, and not what anybody reads into it."""

    tokenizer_class: str | None  # of transformers; None: the files name none
    special_tokens: dict[str, str]  # by name, those that it has
    chat_template: str | None

    @classmethod
    def of(cls, bundle: TokenizerBundle) -> TokenizerFacts:
        tokens = {name: bundle.special_token(name) for name in SPECIAL_TOKENS}
        return cls(
            tokenizer_class=bundle.config.get("tokenizer_class"),
            special_tokens={name: text for name, text in tokens.items() if text is not None},
            chat_template=bundle.chat_template,
        )

    def view(self) -> dict[str, Any]:
        """JSON, in the words of tokenizer_config.json."""
        return {
            "tokenizer_class": self.tokenizer_class,
            **{name: self.special_tokens.get(name) for name in SPECIAL_TOKENS},
            "chat_template": self.chat_template,
        }


class FillInMiddle(NamedTuple):
    """How a model was trained to fill the gap of a prompt, by one tokenizer's tokens.

    Each mark is a single token of it.
    """

    before_prefix: str
    before_suffix: str
    before_middle: str
    end_ids: tuple[int, ...]
    before_project: str = ""  # "": it has no such mark
    before_file: str = ""

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self | None:
        """None where no marks of a known kind are among the added tokens."""
        added = {token.content: idx for idx, token in tokenizer.get_added_tokens_decoder().items()}
        for marks in _MARKS:
            if added.keys() >= set(marks):
                ends = (*_ENDS, *marks)
                end_ids = tuple(dict.fromkeys(added[end] for end in ends if end in added))
                project, file = (
                    next((mark for mark in known if mark in added), "")
                    for known in (_PROJECTS, _FILES)
                )
                return cls(*marks, end_ids, project, file)
        return None

    def prompt(self, prefix: str, suffix: str) -> str:
        """The text that the model goes on with what stands between them."""
        return f"{self.before_prefix}{prefix}{self.before_suffix}{suffix}{self.before_middle}"

    def context(self, files: Sequence[tuple[str, str]]) -> str:
        """Other files, by name and text, as llama.cpp puts them before the prompt."""
        if not files:
            return ""
        if not self.before_file:
            return "".join(f"\n\n--- snippet ---\n\n{text}" for _, text in files)
        project = f"{self.before_project}myproject\n" if self.before_project else ""
        texts = "".join(f"{self.before_file}{name}\n{text}" for name, text in files)
        return f"{project}{texts}{self.before_file}filename\n"
