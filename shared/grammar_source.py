"""Grammars as llguidance reads them: one translation and one set of limits, for whoever checks a
grammar and for whoever runs it."""

from __future__ import annotations

import json
from importlib.metadata import version

from llguidance import LLMatcher, LLParserLimits
from llguidance.gbnf_to_lark import any_to_lark

from shared.errors import GrammarError
from shared.protocol import Grammar, GrammarKind

# Any amount of JSON whitespace is valid, but a model that likes spaces would never get out of it.
DEFAULT_WHITESPACE = r"( |\n[ \t]{0,40})"


def grammar_engine() -> str:
    """The library that gives grammars their meaning, with its version."""
    return f"llguidance {version('llguidance')}"


def parser_limits() -> LLParserLimits:
    """What a grammar may cost. A mask ends with an error after about 30 ms (measured: 7k items and
    14k steps of the lexer a ms); then its request fails, and nobody else's."""
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
            return LLMatcher.grammar_from_lark(_lark(grammar.text))


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


def _lark(text: str) -> str:
    try:
        return str(any_to_lark(text))
    except RecursionError as exc:
        raise GrammarError("the grammar is nested too deeply") from exc
    except Exception as exc:  # the converter raises bare exceptions of its own
        raise GrammarError(f"the grammar cannot be read: {exc}") from exc
