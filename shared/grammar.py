"""Grammars as llguidance reads them: one translation and one set of limits, for whoever checks a
grammar and for whoever runs it."""

from __future__ import annotations

import json
import re
from importlib.metadata import version

from llguidance import LLMatcher, LLParserLimits
from llguidance.gbnf_to_lark import any_to_lark

from shared.errors import GrammarError
from shared.protocol.sampling import DEFAULT_WHITESPACE, Grammar, GrammarKind

_COMMENT = re.compile(r'("(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\])|#[^\n]*')
_UNICODE_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)\\u([0-9a-fA-F]{4})")
_SYNTAX = frozenset("\"'\\[]^-")


def lark_of(text: str) -> str:
    """EBNF as llama.cpp and xgrammar write it, as Lark; Lark stays as it is. Raises GrammarError.

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


def grammar_engine() -> str:
    """The library that gives grammars their meaning, with its version."""
    return f"llguidance {version('llguidance')}"


def parser_limits() -> LLParserLimits:
    """What a grammar may cost. Beyond that a mask is an error, of its own request alone."""
    return LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_items_in_row=2000,
        max_lexer_states=50_000,
        max_grammar_size=100_000,
        verbose_errors=False,
    )


def grammar_source(grammar: Grammar) -> str:
    """Raises GrammarError when the text is not of its kind."""
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            return _json_source(grammar)
        case GrammarKind.REGEX:
            return LLMatcher.grammar_from_regex(grammar.text)
        case GrammarKind.CHOICE:
            choices = [json.dumps(choice) for choice in json.loads(grammar.text)]
            return LLMatcher.grammar_from_lark("start: " + "\n  | ".join(choices))
        case GrammarKind.EBNF:
            return LLMatcher.grammar_from_lark(lark_of(grammar.text))
        case GrammarKind.LARK:
            return LLMatcher.grammar_from_lark(grammar.text)


def _json_source(grammar: Grammar) -> str:
    pattern = DEFAULT_WHITESPACE if grammar.whitespace is None else grammar.whitespace
    try:
        return LLMatcher.grammar_from_json_schema(
            grammar.text,
            overrides={"whitespace_pattern": pattern}
            if pattern
            else {"whitespace_flexible": False},
        )
    except ValueError as exc:
        raise GrammarError(f"the schema cannot be read: {exc}") from exc
