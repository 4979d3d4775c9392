"""Vocabularies of tiktoken, as Kimi's, Hunyuan's and Qwen 1's makers publish them, in the form of
tokenizer.json: their code is not run.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shared.checkpoint.json_file import read_json
from shared.checkpoint.ranked_words import ranked_bpe
from shared.errors import ConfigError
from shared.gguf.tokens.added_tokens import added_token
from shared.gguf.tokens.bpe_tokenizer import KIMI, QWEN2, PreTokenizer

_MAX_BYTES = 64 << 20
_NUM_RESERVED = 256  # special tokens of Kimi
_EXTRAS = tuple(f"<|extra_{idx}|>" for idx in range(205))
_COMPOSED = replace(QWEN2, takes_whole_words=True)
_QWEN = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *_EXTRAS)
_HUNYUAN = ("<|endoftext|>", "<|startoftext|>", "<|bos|>", "<|eos|>", "<|pad|>", *_EXTRAS)
# Kimi's code gives its template tools with sorted keys.
_TOOLS_AS_JSON = re.compile(
    r"\btools\s*\|\s*tojson\b(?:\s*\((?P<options>[^()]*(?:\([^()]*\))?)\))?"
)

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Kind:
    pre_tokenizer: PreTokenizer
    special: Callable[[Path, int, Config], list[dict[str, Any]]]  # of the number of words
    is_numbered: bool = True  # else the words count, each of them once


def tiktoken_file_in(path: Path) -> Path | None:
    """A vocabulary of a kind that is known here."""
    return next((path / name for name in _KINDS if (path / name).is_file()), None)


def tiktoken_files(file: Path) -> dict[str, bytes]:
    """tokenizer.json of such a file, and the template if it hears of tools in another way.

    Raises ConfigError for one that is not as its makers write it.
    """
    kind = _KINDS[file.name]
    config = read_json(file.parent / "tokenizer_config.json", dict, {})
    words = _words(file, is_numbered=kind.is_numbered)
    special = kind.special(file, len(words), config)
    tokenizer = ranked_bpe(file, kind.pre_tokenizer, words, first_id=0, added=special)
    files = {"tokenizer.json": json.dumps(tokenizer, ensure_ascii=False).encode()}
    if kind.pre_tokenizer is KIMI:
        files |= _sorting_template(file.parent, config)
    return files


def _words(file: Path, *, is_numbered: bool) -> list[bytes]:
    """A line has a word and its rank, which counts up."""
    try:
        if (num_bytes := file.stat().st_size) > _MAX_BYTES:
            raise ConfigError(f"{file} has {num_bytes} bytes: more than {_MAX_BYTES} are not read")
        lines = file.read_bytes().splitlines()
    except OSError as exc:
        raise ConfigError(f"cannot read {file}: {exc.strerror}") from exc
    words = []
    for idx, line in enumerate(filter(None, lines)):
        try:
            encoded, rank = line.split()
            word, number = base64.b64decode(encoded, validate=True), int(rank)
        except (ValueError, binascii.Error) as exc:
            raise ConfigError(f"{file}: line {idx + 1} is no word with its rank") from exc
        if is_numbered and number != idx:
            raise ConfigError(f"{file}: line {idx + 1} has rank {number}: out of order")
        words.append(word)
    return words if is_numbered else [*dict.fromkeys(words)]


def _listed(texts: Sequence[str]) -> Callable[[Path, int, Config], list[dict[str, Any]]]:
    """Those that the makers' code has, behind the words."""

    def special(_: Path, num_words: int, __: Config) -> list[dict[str, Any]]:
        return [added_token(num_words + idx, text) for idx, text in enumerate(texts)]

    return special


def _kimi_special(file: Path, num_words: int, config: Config) -> list[dict[str, Any]]:
    """Those that tokenizer_config.json names, amid reserved ones."""
    named = config.get("added_tokens_decoder")
    texts: dict[int, tuple[str, bool]] = {}
    for key, value in (named if isinstance(named, dict) else {}).items():
        content = value.get("content") if isinstance(value, dict) else None
        if not isinstance(content, str) or not key.isdecimal():
            raise ConfigError(f"{file.parent}: added_tokens_decoder has {key!r}: {value!r}")
        texts[int(key)] = (content, value.get("special") is not False)
    ids = range(num_words, num_words + _NUM_RESERVED)
    if not texts or not texts.keys() <= {*ids}:
        raise ConfigError(
            f"{file.parent}: the special tokens of tokenizer_config.json have ids {[*texts]}, and "
            f"{file.name} has {num_words} words: they must lie in the {_NUM_RESERVED} behind them"
        )
    found = {token_id: (f"<|reserved_token_{token_id}|>", True) for token_id in ids} | texts
    return [
        added_token(token_id, text, is_special=is_special)
        for token_id, (text, is_special) in found.items()
    ]


def _sorting_template(path: Path, config: Config) -> dict[str, bytes]:
    file = path / "chat_template.jinja"
    source = file.read_text() if file.is_file() else config.get("chat_template")
    if not isinstance(source, str):
        return {}
    source = _TOOLS_AS_JSON.sub(_sorted, source)
    return {file.name: source.encode()}


def _sorted(match: re.Match[str]) -> str:
    options = match["options"]
    more = f"{options}, " if options else ""
    return f"tools | tojson({more}sort_keys=true)"


_KINDS = {
    "tiktoken.model": _Kind(KIMI, _kimi_special),
    "hy.tiktoken": _Kind(_COMPOSED, _listed(_HUNYUAN), is_numbered=False),
    "qwen.tiktoken": _Kind(_COMPOSED, _listed(_QWEN)),
}
