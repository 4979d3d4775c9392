"""Mistral's tekken.json gives the ids of byte pairs that are merged by rank."""

from __future__ import annotations

import base64
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from frontend.models.chat_template import ChatTemplate
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
        ({"special_tokens": None}, "must be a list, not None"),
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


def test_the_first_versions_have_special_tokens_of_their_own(tmp_path: Path) -> None:
    values = tekken(config={"pattern": PATTERN, "version": "v3"})
    del values["special_tokens"]
    (tmp_path / "tekken.json").write_text(json.dumps(values))
    tokenizer = TokenizerBundle.from_model_dir(tmp_path).tokenizer()
    assert tokenizer.encode("[TOOL_CONTENT]e").ids == [1, 19, 20 + ord("e")]


CALL = '{"name": "f", "arguments": {"a": "\u00e9"}'
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
TOLD = f"[AVAILABLE_TOOLS][{json.dumps(TOOL)}][/AVAILABLE"


@pytest.mark.parametrize(
    ("version", "text"),
    [
        (
            "v3",
            f'<s>[INST]Hi[/INST][TOOL_CALLS][{CALL}, "id": "abcDEF123"}}]</s>[TOOL_RESULTS]'
            f'{{"content": "rain", "call_id": "abcDEF123"}}[/TOOL_RESULTS]Wet.</s>{TOLD}_TOOLS]'
            "[INST]Short.\n\nThanks[BEGIN_AUDIO][AUDIO][/INST]",
        ),
        (
            "v7",
            f'<s>[SYSTEM_PROMPT]Short.[/SYSTEM_PROMPT][INST]Hi[/INST][TOOL_CALLS][{CALL}, "id": '
            '"abcDEF123"}]</s>[TOOL_RESULTS]abcDEF123[TOOL_CONTENT]rain[/TOOL_RESULTS]Wet.</s>'
            f"{TOLD}_TOOLS][INST]Thanks[BEGIN_AUDIO][AUDIO][/INST]",
        ),
        (
            "v11",
            "<s>[SYSTEM_PROMPT]Short.[/SYSTEM_PROMPT][INST]Hi[/INST][TOOL_CALLS]f[CALL_ID]abcDEF123"
            '[ARGS]{"a": "\u00e9"}</s>[TOOL_RESULTS]abcDEF123[TOOL_CONTENT]rain[/TOOL_RESULTS]Wet.'
            f"</s>{TOLD}_TOOLS][INST]Thanks[BEGIN_AUDIO][AUDIO][/INST]",
        ),
        (
            "v13",
            f"<s>[SYSTEM_PROMPT]Short.[/SYSTEM_PROMPT]{TOLD}_TOOLS][INST]Hi[/INST][THINK]Hm.[/THINK]"
            '[TOOL_CALLS]f[ARGS]{"a": "\u00e9"}</s>[TOOL_RESULTS]rain[/TOOL_RESULTS]Wet.</s>'
            "[INST]Thanks[BEGIN_AUDIO][AUDIO][/INST]",
        ),
    ],
)
def test_chats_are_those_of_mistrals_own_library(tmp_path: Path, version: str, text: str) -> None:
    special = [{"rank": idx, "token_str": each} for idx, each in enumerate(("<s>", "[/THINK]"))]
    made = bundle(tmp_path, config={"pattern": PATTERN, "version": version}, special_tokens=special)
    source = made.chat_template
    assert source is not None
    function = {"name": "f", "arguments": {"a": "\u00e9"}}
    call = {"id": "abcDEF123", "type": "function", "function": function}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Short."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcDEF123", "content": "rain"},
        {"role": "assistant", "content": "Wet. "},
        {"role": "user", "content": [{"type": "text", "text": "Thanks"}, {"type": "audio"}]},
    ]
    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    assert template.render(messages, kwargs={"tools": [TOOL]}) == text


def test_a_version_that_is_not_known_has_no_template(tmp_path: Path) -> None:
    assert bundle(tmp_path, config={"pattern": PATTERN, "version": "v99"}).chat_template is None
