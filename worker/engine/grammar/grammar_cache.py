"""Compiled grammars that are kept: the ones used last, within a bound."""

from __future__ import annotations

from collections import OrderedDict

from shared.protocol.sampling import Grammar
from worker.engine.grammar.grammar_matcher import CompiledGrammar


class GrammarCache:
    """Least recently used out first, by number and by bytes of text.

    What a compiled grammar takes grows with its text and with the lexer states that its outputs
    have met; the backend bounds those of one grammar.
    """

    def __init__(self, max_grammars: int, max_text_bytes: int) -> None:
        self._max_grammars = max_grammars
        self._max_text_bytes = max_text_bytes
        self._num_text_bytes = 0
        self._compiled: OrderedDict[Grammar, CompiledGrammar] = OrderedDict()

    def __len__(self) -> int:
        return len(self._compiled)

    def get(self, grammar: Grammar) -> CompiledGrammar | None:
        compiled = self._compiled.get(grammar)
        if compiled is not None:
            self._compiled.move_to_end(grammar)
        return compiled

    def put(self, grammar: Grammar, compiled: CompiledGrammar) -> None:
        if grammar in self._compiled:
            return
        self._compiled[grammar] = compiled
        self._num_text_bytes += len(grammar.text)
        while len(self._compiled) > self._max_grammars or (
            self._num_text_bytes > self._max_text_bytes and len(self._compiled) > 1
        ):
            evicted, _ = self._compiled.popitem(last=False)
            self._num_text_bytes -= len(evicted.text)
