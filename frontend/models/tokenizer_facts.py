"""What a tokenizer's files say of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shared.checkpoint.tokenizer_bundle import TokenizerBundle

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token")


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """As its files have them, not as anybody reads them into those."""

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
