"""Grammars by llguidance: compiled in a millisecond, lexer states made as outputs meet them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from llguidance import LLExecutor, LLMatcher, LLTokenizer

from shared.checkpoint.tokenizer_bundle import TokenizerBundle
from shared.errors import ConfigError, GrammarError
from shared.grammar import grammar_source, parser_limits
from shared.protocol.sampling import Grammar
from worker.engine.grammar.grammar_matcher import Bitmask, GrammarMatcher

MAX_ERROR_CHARS = 300
MAX_SHARING_OUTPUTS = 256
MIN_PARALLEL_ROWS = 32
MIN_PARALLEL_CORES = 3  # measured on two: 64 rows took 1.39 ms alone and 1.40 ms in parallel


class LLGuidanceMatcher:
    """One output in a grammar."""

    def __init__(self, matcher: LLMatcher) -> None:
        self.inner = matcher
        self._forced_ids: Sequence[int] | None = None  # at this place, once it was asked for

    @property
    def error(self) -> str:
        return error_of(self.inner)

    @property
    def is_terminated(self) -> bool:
        return self.inner.is_stopped()

    def accept(self, token_id: int) -> bool:
        self._forced_ids = None
        return self.inner.consume_token(token_id)

    def forced_ids(self) -> Sequence[int]:
        if self._forced_ids is None:
            self._forced_ids = self.inner.compute_ff_tokens()
        return self._forced_ids

    def num_allowed(self, token_ids: Sequence[int]) -> int:
        return self.inner.validate_tokens(list(token_ids))


class LLGuidanceGrammar:
    """A compiled grammar. Its matchers share the lexer states that any of them has met.

    Shared states are met once, and counted together against the limit of one grammar: before they
    reach it, later outputs begin with a new compilation.
    """

    def __init__(self, compile_anew: Callable[[], LLMatcher]) -> None:
        self._compile_anew = compile_anew
        self._prototype = compile_anew()
        self._num_outputs = 0
        self._lock = threading.Lock()

    def matcher(self) -> LLGuidanceMatcher:
        """Called in threads."""
        with self._lock:
            self._num_outputs += 1
            matcher = self._prototype.deep_copy()
            matcher.compute_bitmask()
            if self._num_outputs > MAX_SHARING_OUTPUTS or matcher.is_error():
                self._prototype = self._compile_anew()
                self._num_outputs = 1
                matcher = self._prototype.deep_copy()
            return LLGuidanceMatcher(matcher)


class LLGuidanceBackend:
    """llguidance with the vocabulary of one model, which is read when the first grammar comes."""

    def __init__(
        self, model_path: Path, vocab_size: int, eos_token_ids: Sequence[int], num_threads: int
    ) -> None:
        self._model_path = model_path
        self._vocab_size = vocab_size
        self._eos_token_ids = list(eos_token_ids)
        self._executor = LLExecutor(num_threads) if num_threads > 1 else None
        self._tokenizer: LLTokenizer | None = None
        self._loading = threading.Lock()

    def compile(self, grammar: Grammar) -> LLGuidanceGrammar:
        """Raises GrammarError."""
        tokenizer, source = self._loaded_tokenizer(), grammar_source(grammar)

        def compile_anew() -> LLMatcher:
            prototype = LLMatcher(tokenizer, source, limits=parser_limits(), log_level=0)
            if prototype.is_error():
                raise GrammarError(error_of(prototype))
            prototype.compute_bitmask()  # the slowest mask is the first
            return prototype

        return LLGuidanceGrammar(compile_anew)

    def fill_masks(self, matchers: Sequence[GrammarMatcher], bitmask: Bitmask) -> None:
        """Row i for matcher i. A matcher with an error gets the end-of-turn tokens alone."""
        assert bitmask.flags.c_contiguous
        assert len(matchers) <= len(bitmask)
        address, row_bytes = bitmask.ctypes.data, bitmask.strides[0]
        inner = [_inner(matcher) for matcher in matchers]
        if self._executor is not None and len(inner) >= MIN_PARALLEL_ROWS:
            rows = [(matcher, row) for row, matcher in enumerate(inner)]
            self._executor.unsafe_compute_mask_ptr(rows, address, row_bytes, len(bitmask))
            return
        for row, matcher in enumerate(inner):
            matcher.unsafe_compute_mask_ptr(address + row * row_bytes, row_bytes)

    def fill_draft_masks(
        self, matcher: GrammarMatcher, draft_ids: Sequence[int], bitmask: Bitmask
    ) -> None:
        address, row_bytes = bitmask.ctypes.data, bitmask.strides[0]
        copy = _inner(matcher).deep_copy()
        for row, draft_id in enumerate((None, *draft_ids)):
            if draft_id is not None and not copy.consume_token(draft_id):
                return
            copy.unsafe_compute_mask_ptr(address + row * row_bytes, row_bytes)

    def _loaded_tokenizer(self) -> LLTokenizer:
        with self._loading:
            if self._tokenizer is None:
                self._tokenizer = self._load_tokenizer()
            return self._tokenizer

    def _load_tokenizer(self) -> LLTokenizer:
        try:
            text = TokenizerBundle.from_model_dir(self._model_path).tokenizer().to_str()
            return LLTokenizer(text, n_vocab=self._vocab_size, eos_token=self._eos_token_ids)
        except (ConfigError, ValueError) as exc:
            raise GrammarError(f"the model's tokenizer does not fit grammars: {exc}") from exc


def error_of(matcher: LLMatcher) -> str:
    """What went wrong, on one short line; "" when nothing did."""
    words = matcher.get_error().split("<state>")[0].replace("<non-verbose/>", "").split()
    return " ".join(words)[:MAX_ERROR_CHARS]


def _inner(matcher: GrammarMatcher) -> LLMatcher:
    assert isinstance(matcher, LLGuidanceMatcher)
    return matcher.inner
