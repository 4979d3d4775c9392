"""Mistral's tekken.json gives the ids of byte pairs that are merged by rank."""

from __future__ import annotations

import base64
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from shared.checkpoint.tokenizer_bundle import TokenizerBundle
from shared.errors import ConfigError

WORDS = [b"th", b"e ", b"the", b"at", b" th", b"hat", b"er", b"\xc3\xa9", b"12", b" the", b"\n\n"]
VOCAB = [bytes([byte]) for byte in range(256)] + WORDS
SPECIAL = ["<unk>", "<s>", "</s>", "[INST]"]
NUM_SPECIAL = 6  # two have no name
PATTERN = r" ?[^\W\d]+|\d| ?[^\s\w]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEXTS = ["that the other", " the\n\nfather 12 é!", "日本 the", "thethe at"]


def tekken(**changes: Any) -> dict[str, Any]:
    words = [{"rank": rank, "token_bytes": encoded(each)} for rank, each in enumerate(VOCAB)]
    special = [{"rank": rank, "token_str": each} for rank, each in enumerate(SPECIAL)]
    config = {
        "pattern": PATTERN,
        "default_vocab_size": NUM_SPECIAL + len(VOCAB),
        "default_num_special_tokens": NUM_SPECIAL,
    }
    spare = {"rank": len(VOCAB), "token_bytes": encoded(b"other")}  # beyond the model's
    return {"config": config, "vocab": [*words, spare], "special_tokens": special} | changes


def encoded(word: bytes) -> str:
    return base64.b64encode(word).decode()


def bundle(path: Path, **changes: Any) -> TokenizerBundle:
    (path / "tekken.json").write_text(json.dumps(tekken(**changes)))
    return TokenizerBundle.from_model_dir(path)


def merged(word: bytes) -> list[int]:
    return [NUM_SPECIAL + each for each in merged_by_rank(word, VOCAB)]


def merged_by_rank(word: bytes, vocab: list[bytes]) -> list[int]:
    """The pair whose word is first in the vocabulary becomes one, until there is none."""
    if word in vocab:
        return [vocab.index(word)]
    parts = [bytes([byte]) for byte in word]
    while True:
        pairs = [one + other for one, other in pairwise(parts)]
        known = [pair for pair in pairs if pair in vocab]
        if not known:
            return [vocab.index(part) for part in parts]
        first = pairs.index(min(known, key=vocab.index))
        parts[first : first + 2] = [pairs[first]]


@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_those_of_byte_pairs_by_rank(tmp_path: Path, text: str) -> None:
    tokenizer = bundle(tmp_path).tokenizer()
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert ids == [each for word in re.findall(PATTERN, text) for each in merged(word.encode())]
    assert tokenizer.decode(ids) == text


def test_special_tokens_come_first(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    made = bundle(tmp_path)
    assert made.chat_template == "{{ messages }}"
    tokenizer = made.tokenizer()
    e = NUM_SPECIAL + ord("e")
    assert tokenizer.encode("[INST]e<SPECIAL_5>").ids == [1, 3, e, 5]
    assert tokenizer.get_vocab_size() == NUM_SPECIAL + len(VOCAB)
    told = json.loads(made.files["tokenizer_config.json"])
    assert (told["bos_token"], told["eos_token"]) == ("<s>", "</s>")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"config": {}}, "'config' has no 'pattern'"),
        ({"special_tokens": None}, "of an old version"),
        ({"special_tokens": [{"rank": 9, "token_str": "<s>"}]}, r"ranks \[9\], which are not all"),
        ({"special_tokens": ["<s>"]}, "has no 'token_str': '<s>'"),
        ({"vocab": []}, "has not the 267 words"),
        ({"vocab": [{}] * 300}, "word 0 has no 'token_bytes'"),
        ({"vocab": [{"token_bytes": "YQ=="}] * 300}, "a word comes twice"),
        ({"vocab": [{"rank": 1, "token_bytes": "YQ=="}] * 300}, "word 0 is empty or out of order"),
    ],
)
def test_what_is_not_as_its_makers_write_it(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        bundle(tmp_path, **changes)
