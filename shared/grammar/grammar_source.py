"""Grammars as llguidance reads them: one translation and one set of limits, for whoever checks a
grammar and for whoever runs it."""

from __future__ import annotations

import json
from importlib.metadata import version

from llguidance import LLMatcher, LLParserLimits

from shared.errors import GrammarError
from shared.grammar.ebnf import lark_of
from shared.grammar.json_whitespace import DEFAULT_WHITESPACE
from shared.protocol.sampling import Grammar, GrammarKind


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
