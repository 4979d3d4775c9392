"""EBNF as llama.cpp and xgrammar write it, turned into the Lark that llguidance reads."""

from __future__ import annotations

import re

from llguidance.gbnf_to_lark import any_to_lark

from shared.errors import GrammarError

_COMMENT = re.compile(r'("(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\])|#[^\n]*')
_UNICODE_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)\\u([0-9a-fA-F]{4})")
_SYNTAX = frozenset("\"'\\[]^-")


def lark_of(text: str) -> str:
    """Lark stays as it is. Raises GrammarError.

    The library's converter is given what it does not know in other words: alternatives on lines
    of their own, and escapes of characters beyond ASCII.
    """
    if "::=" not in text:
        return text
    text = _COMMENT.sub(lambda match: match[1] or "", text)
    text = re.sub(r"\s*\n\s*\|", " |", text)
    text = _UNICODE_ESCAPE.sub(_plain, text)
    try:
        return str(any_to_lark(text))
    except RecursionError as exc:
        raise GrammarError("it is nested too deeply") from exc
    except Exception as exc:  # the converter raises bare exceptions of its own
        raise GrammarError(f"it cannot be read: {exc}") from exc


def _plain(match: re.Match[str]) -> str:
    char = chr(int(match[2], 16))
    is_plain = char.isprintable() and char not in _SYNTAX
    return match[1] + char if is_plain else match[0]
