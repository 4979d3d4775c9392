"""Where requests wait while their grammar is compiled, out of everybody's way."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from shared.errors import GrammarError
from shared.protocol.sampling import Grammar
from worker.engine.grammar.grammar_matcher import CompiledGrammar, GrammarBackend, GrammarMatcher

NUM_THREADS = 2
MAX_GRAMMARS = 128
MAX_TEXT_BYTES = 8 << 20


class GrammarCache:
    """Compiled grammars that are kept: the ones used last, by number and by bytes of text.

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


@dataclass(frozen=True, slots=True)
class SeatedGrammar:
    """The outcome of a wait: a matcher that has read the output so far, or why there is none."""

    run_id: int
    matcher: GrammarMatcher | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class _Wait:
    run_id: int
    future: Future[tuple[CompiledGrammar, GrammarMatcher]]
    grammar: Grammar
    deadline: float  # of the monotonic clock


class GrammarQueue:
    """Compiles and replays in threads: llguidance holds no lock meanwhile that a step needs.

    A compilation that takes too long is given up, and its request with it; the backend's own
    limits end the thread's work.
    """

    def __init__(self, backend: GrammarBackend, timeout_s: float) -> None:
        self._backend = backend
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="grammar")
        self._cache = GrammarCache(MAX_GRAMMARS, MAX_TEXT_BYTES)
        self._waits: dict[int, _Wait] = {}  # by run_id

    def __len__(self) -> int:
        return len(self._waits)

    def __contains__(self, run_id: int) -> bool:
        return run_id in self._waits

    def wait_for(self, run_id: int, grammar: Grammar, output_ids: Sequence[int]) -> None:
        """Begin; `take_seated` tells the outcome."""
        assert run_id not in self._waits, "run ids are never used twice"
        known = self._cache.get(grammar)
        future = self._threads.submit(_seat, self._backend, known, grammar, output_ids)
        deadline = time.monotonic() + self._timeout_s
        self._waits[run_id] = _Wait(run_id, future, grammar, deadline)

    def abandon(self, run_id: int) -> None:
        """Nobody wants it any more. Unknown ids are ignored."""
        wait = self._waits.pop(run_id, None)
        if wait is not None:
            wait.future.cancel()

    def take_seated(self) -> list[SeatedGrammar]:
        """The outcomes since the last call, in the order in which the waits began."""
        seated: list[SeatedGrammar] = []
        for wait in list(self._waits.values()):
            outcome = self._outcome(wait)
            if outcome is not None:
                del self._waits[wait.run_id]
                seated.append(outcome)
        return seated

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _outcome(self, wait: _Wait) -> SeatedGrammar | None:
        if not wait.future.done():
            if time.monotonic() < wait.deadline:
                return None
            wait.future.cancel()
            error = f"the grammar was not compiled within {self._timeout_s:g} s"
            return SeatedGrammar(wait.run_id, None, error)
        try:
            compiled, matcher = wait.future.result()
        except GrammarError as exc:
            return SeatedGrammar(wait.run_id, None, f"the grammar cannot be used: {exc}")
        self._cache.put(wait.grammar, compiled)
        return SeatedGrammar(wait.run_id, matcher)


def _seat(
    backend: GrammarBackend,
    known: CompiledGrammar | None,
    grammar: Grammar,
    output_ids: Sequence[int],
) -> tuple[CompiledGrammar, GrammarMatcher]:
    """In a thread. Raises GrammarError."""
    compiled = known if known is not None else backend.compile(grammar)
    matcher = compiled.matcher()
    for position, token_id in enumerate(output_ids):
        if not matcher.accept(token_id):
            raise GrammarError(
                f"output token {position}, id {token_id}, does not follow it as {grammar.engine} "
                f"reads it: {matcher.error}"
            )
    return compiled, matcher
