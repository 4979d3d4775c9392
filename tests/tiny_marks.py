"""The tokens that tell where parts of images lie, of several families, and a tokenizer of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MARKS = {
    "[IMG_BREAK]": 3,
    "[IMG_END]": 4,
    "<|image_start|>": 5,
    "<|image_end|>": 6,
    "<|image|>": 7,
    "<|tile_x_separator|>": 8,
    "<|tile_y_separator|>": 9,
    "<fake_token_around_image>": 10,
    "<global-img>": 11,
    **{f"<row_{row}_col_{col}>": 10 + 4 * row + col for row in range(1, 5) for col in range(1, 5)},
}
_NEWLINES = {"\u010a": 12, "\u010a\u010a": 13}  # as tokenizers of bytes write them


def write_marks(path: Path) -> None:
    """The files of `tiny_tokenizer`."""
    words = {str(token_id): {"content": word} for word, token_id in MARKS.items()}
    (path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": words}))
    tiny_tokenizer().save(str(path / "tokenizer.json"))


def tiny_tokenizer() -> Any:
    """Of newlines and marks alone."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE(_NEWLINES | MARKS, [("\u010a", "\u010a")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens([*MARKS])
    return tokenizer
