"""tiktoken's vocabularies give the ids of byte pairs that are merged by rank, amid the texts that
their makers' patterns cut out.
"""

from __future__ import annotations

import base64
import json
import random
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import regex  # type: ignore[import-untyped]

from frontend.models.chat_template import ChatTemplate
from shared.checkpoint.tokenizer_bundle import TokenizerBundle
from shared.errors import ConfigError
from tests.shared.checkpoint.test_tekken import merged_by_rank

ENDS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
KIMI = (
    rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ENDS}?|"
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{ENDS}?|"
    rf"\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES}"
)
QWEN = rf"{ENDS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES}"
PATTERNS = {"tiktoken.model": KIMI, "hy.tiktoken": QWEN, "qwen.tiktoken": QWEN}
WORDS = [bytes([byte]) for byte in range(256)] + [
    each.encode()
    for each in ("th", "e ", "the", " th", "he", "12", " the", "'s", "\n\n", "é", "中")
]
SPECIAL = {"0": ("[BOS]", True), "2": ("<|im_end|>", True), "5": ("<|tool_call_begin|>", False)}
PARTS = (
    *("the", "'S", "'\u017f", "中文", "々", "é", "e\u0301", "ß", "12345", "½", " ", "\n"),
    *("\r\n", "\t", "\u00a0", "\u200b", "🙂", "Aa", "ǅ", "ʰ", "한국", "...", "</", "\u0301"),
)


def write(path: Path, name: str, words: list[bytes] = WORDS, **config: Any) -> Path:
    lines = [base64.b64encode(word) + b" %d" % rank for rank, word in enumerate(words)]
    (path / name).write_bytes(b"\n".join(lines))
    named = {
        str(len(words) + int(key)): {"content": text, "special": is_special}
        for key, (text, is_special) in SPECIAL.items()
    }
    values = {"added_tokens_decoder": named, "eos_token": "<|im_end|>"} | config
    (path / "tokenizer_config.json").write_text(json.dumps(values))
    return path


@pytest.mark.parametrize("name", PATTERNS)
def test_ids_are_those_of_byte_pairs_by_rank(tmp_path: Path, name: str) -> None:
    tokenizer = TokenizerBundle.from_model_dir(write(tmp_path, name)).tokenizer()
    source = random.Random(5)
    for _ in range(200):
        text = "".join(source.choices(PARTS, k=source.randrange(1, 12)))
        ids = tokenizer.encode(text).ids
        if name != "tiktoken.model":
            text = unicodedata.normalize("NFC", text)
        pieces = regex.findall(PATTERNS[name], text, regex.V1)
        assert ids == [each for piece in pieces for each in merged_by_rank(piece.encode(), WORDS)]
        assert tokenizer.decode(ids) == text


def test_special_tokens_come_behind_the_words(tmp_path: Path) -> None:
    bundle = TokenizerBundle.from_model_dir(write(tmp_path, "tiktoken.model"))
    tokenizer, num_words = bundle.tokenizer(), len(WORDS)
    assert tokenizer.get_vocab_size() == num_words + 256
    text = f"a<|im_end|><|reserved_token_{num_words + 255}|><|tool_call_begin|>"
    ids = [ord("a"), *(num_words + each for each in (2, 255, 5))]
    assert tokenizer.encode(text).ids == ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a<|tool_call_begin|>"
    assert bundle.special_token("eos_token") == "<|im_end|>"


def test_words_of_hunyuan_that_come_twice_count_once(tmp_path: Path) -> None:
    path = write(tmp_path, "hy.tiktoken", [*WORDS, b"a", b"last"])
    tokenizer = TokenizerBundle.from_model_dir(path).tokenizer()
    assert tokenizer.encode("last<|startoftext|>").ids == [len(WORDS), len(WORDS) + 2]


@pytest.mark.parametrize("options", ["", "()", "(separators=(',', ':'))", "(indent=2)"])
def test_kimis_template_hears_of_tools_with_sorted_keys(tmp_path: Path, options: str) -> None:
    template = "{{ tools | tojson" + options + " }}{{ messages[0] | tojson }}"
    path = write(tmp_path, "tiktoken.model", chat_template=template)
    source = TokenizerBundle.from_model_dir(path).chat_template
    assert source is not None
    tools = [{"type": "function", "function": {"name": "f", "a": {"z": 1, "b": 2}}}]
    said = ChatTemplate(source, {}).render([{"role": "user"}], kwargs={"tools": tools})
    known = {"": {}, "()": {}, "(indent=2)": {"indent": 2}}
    style = known.get(options, {"separators": (",", ":")})
    assert said == json.dumps(tools, sort_keys=True, **style) + '{"role": "user"}'


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"YQ== 1", "line 1 has rank 1: out of order"),
        (b"YQ== 0\nYQ", "line 2 is no word with its rank"),
    ],
)
def test_what_is_not_as_its_makers_write_it(tmp_path: Path, data: bytes, sentence: str) -> None:
    write(tmp_path, "tiktoken.model")
    (tmp_path / "tiktoken.model").write_bytes(data)
    with pytest.raises(ConfigError, match=sentence):
        TokenizerBundle.from_model_dir(tmp_path)


@pytest.mark.parametrize(
    ("words", "config", "sentence"),
    [
        (WORDS[1:], {}, "a word comes twice, or a byte is none"),
        (WORDS, {"added_tokens_decoder": {"9": {"content": "x"}}}, r"have ids \[9\], and"),
        (WORDS, {"added_tokens_decoder": None}, r"have ids \[\], and"),
        (WORDS, {"added_tokens_decoder": {"300": "x"}}, "added_tokens_decoder has '300': 'x'"),
    ],
)
def test_vocabularies_that_do_not_fit(
    tmp_path: Path, words: list[bytes], config: dict[str, Any], sentence: str
) -> None:
    path = write(tmp_path, "tiktoken.model", words, **config)
    with pytest.raises(ConfigError, match=sentence):
        TokenizerBundle.from_model_dir(path)


def test_a_word_is_no_special_token(tmp_path: Path) -> None:
    path = write(tmp_path, "tiktoken.model", [*WORDS, b"[BOS]"])
    with pytest.raises(ConfigError, match=r"'\[BOS\]' is a word, and a special token, too"):
        TokenizerBundle.from_model_dir(path)
