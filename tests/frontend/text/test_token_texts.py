from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from frontend.text.token_texts import TextOffsets, TokenTexts
from tests.frontend.tiny_model import BOS, make_tokenizer
from tests.shared.small_tokenizers import (
    byte_fallback_tokenizer,
    byte_level_tokenizer,
    word_piece_tokenizer,
)

TEXT = "the fox, 5 Grüße 🙂"


@pytest.mark.parametrize(
    "tokenizer", [byte_level_tokenizer(), byte_fallback_tokenizer()], ids=["level", "fallback"]
)
def test_the_bytes_of_all_tokens_are_the_bytes_of_the_text(tokenizer: Tokenizer) -> None:
    texts = TokenTexts(tokenizer)
    token_ids = tokenizer.encode(TEXT, add_special_tokens=False).ids
    whole = b"".join(map(texts.bytes_of, token_ids)).decode()
    assert whole.lstrip(" ") == TEXT  # sentencepiece begins a text with a space


def test_other_tokenizers_decode_each_token_alone() -> None:
    tokenizer = word_piece_tokenizer()
    texts = TokenTexts(tokenizer)
    for token_id in range(tokenizer.get_vocab_size()):
        decoded = tokenizer.decode([token_id], skip_special_tokens=False)
        assert texts.bytes_of(token_id) == decoded.encode()


def test_a_part_of_a_character_is_escaped() -> None:
    tokenizer = make_tokenizer()  # a token a byte
    texts = TokenTexts(tokenizer)
    first, second = tokenizer.encode("é", add_special_tokens=False).ids
    assert texts.bytes_of(first) + texts.bytes_of(second) == "é".encode()
    assert texts.text_of(first) == "\\xc3"
    assert texts.text_of(second, prefix="bytes:") == "bytes:\\xa9"
    (letter,) = tokenizer.encode("a", add_special_tokens=False).ids
    assert texts.text_of(letter, prefix="bytes:") == "a"


def test_special_and_unknown_tokens() -> None:
    texts = TokenTexts(make_tokenizer())
    assert (texts.text_of(BOS), texts.bytes_of(BOS), texts.visible_bytes_of(BOS)) == (
        "<s>",
        b"<s>",
        b"",
    )
    assert (texts.text_of(10**6), texts.bytes_of(10**6)) == ("", b"")


def test_offsets_count_whole_characters() -> None:
    tokenizer = make_tokenizer()
    offsets = TextOffsets(TokenTexts(tokenizer))
    token_ids = tokenizer.encode("aé🙂b").ids  # <s>, then a token a byte
    assert [offsets.next(token_id) for token_id in token_ids] == [0, 0, 1, 1, 2, 2, 2, 2, 3]
