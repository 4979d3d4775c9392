from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from shared.protocol.sampling import Grammar, GrammarKind
from tests.worker.engine.json_llama import EOS_ID, VOCAB_SIZE, encode, save_json_llama
from worker.engine.grammar.grammar_queue import GrammarCache
from worker.engine.grammar.llguidance_backend import LLGuidanceBackend, LLGuidanceGrammar
from worker.engine.sampling.sampler import HostLogits


def make_grammar(text: str) -> Grammar:
    return Grammar(GrammarKind.REGEX, text, "test")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_json_llama(tmp_path_factory.mktemp("json_llama"))


def test_the_least_recently_used_grammar_leaves(folder: Path) -> None:
    backend = LLGuidanceBackend(folder, VOCAB_SIZE, [EOS_ID], 1)
    cache = GrammarCache(max_grammars=2, max_text_bytes=10)
    a, b, c, long = (make_grammar(text) for text in ("a", "b", "c", "x" * 9))
    compiled = {each: backend.compile(each) for each in (a, b, c, long)}
    cache.put(a, compiled[a])
    cache.put(b, compiled[b])
    assert cache.get(a) is compiled[a]
    cache.put(c, compiled[c])
    assert cache.get(b) is None
    assert cache.get(a) is compiled[a]
    cache.put(long, compiled[long])
    assert len(cache) == 2
    cache.put(b, compiled[b])
    assert cache.get(a) is None
    assert cache.get(long) is compiled[long]


def test_a_mask_takes_effect_at_its_row_and_bits() -> None:
    bitmask = np.array([[1 << 3, 0], [-1, -1]], np.int32)
    logits = torch.zeros(3, 40)
    HostLogits().forbid(logits, [0, 2], bitmask)
    assert torch.nonzero(torch.isfinite(logits[0])).flatten().tolist() == [3]
    assert bool(torch.isfinite(logits[1:]).all())


@pytest.mark.parametrize("num_threads", [1, 2])
def test_many_masks_are_filled_as_one_is(folder: Path, num_threads: int) -> None:
    backend = LLGuidanceBackend(folder, VOCAB_SIZE, [EOS_ID], num_threads)
    one = LLGuidanceBackend(folder, VOCAB_SIZE, [EOS_ID], 1)
    num_words = -(-VOCAB_SIZE // 32)
    many_rows, one_row = (np.zeros((rows, num_words), np.int32) for rows in (40, 1))
    matchers = []
    for i in range(40):
        compiled: LLGuidanceGrammar = backend.compile(make_grammar(f"[a-z]{{{1 + i % 5}}}x"))
        matchers.append(compiled.matcher())
        if i % 2:
            matchers[-1].accept(encode("a")[0])
    backend.fill_masks(matchers, many_rows)
    for i in range(40):
        matcher = one.compile(make_grammar(f"[a-z]{{{1 + i % 5}}}x")).matcher()
        if i % 2:
            matcher.accept(encode("a")[0])
        one.fill_masks([matcher], one_row)
        assert (many_rows[i] == one_row[0]).all()


def test_the_end_is_among_the_tokens_exactly_when_it_may_come(folder: Path) -> None:
    backend = LLGuidanceBackend(folder, VOCAB_SIZE, [EOS_ID], 1)
    matcher = backend.compile(make_grammar("ab?")).matcher()
    bitmask = np.zeros((1, -(-VOCAB_SIZE // 32)), np.int32)
    may_end = []
    for token_id in encode("a") + encode("b"):
        backend.fill_masks([matcher], bitmask)
        may_end.append(bool(bitmask[0, EOS_ID // 32] >> EOS_ID & 1))
        assert not matcher.is_terminated
        assert matcher.accept(token_id)
    assert may_end == [False, True]
    assert matcher.is_terminated
    assert not matcher.accept(encode("c")[0])
    assert matcher.error


def test_states_that_many_outputs_have_met_do_not_add_up() -> None:
    """Alone each output meets some hundred states; together they would be beyond the limit."""
    tokenizer, limits = LLTokenizer("byte"), LLParserLimits(max_lexer_states=300)
    source = LLMatcher.grammar_from_regex("(a|b)*a(a|b){12}c")
    compiled = LLGuidanceGrammar(lambda: LLMatcher(tokenizer, source, limits=limits, log_level=0))
    letters = [tokenizer.tokenize_str(letter)[0] for letter in "ab"]
    num_failed = 0
    for seed in range(40):
        matcher, draws = compiled.matcher(), random.Random(seed)
        matcher.inner.compute_bitmask()
        assert not matcher.error
        for _ in range(60):
            matcher.inner.compute_bitmask()
            matcher.accept(draws.choice(letters))
        num_failed += bool(matcher.error)
    assert num_failed < 20  # those that were under way when the limit was reached
