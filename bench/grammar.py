"""`python -m bench.grammar`: grammar libraries over the tests' schemas, with two vocabularies.

llguidance is what jetflock uses; xgrammar is measured too when it is installed. Each library runs
in a process of its own for each vocabulary: compiles every schema, then walks through outputs whose
tokens are drawn evenly from what each mask allows.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import random
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Protocol

import jsonschema
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from frontend.fields.grammar_fields import GrammarFields, resolve_grammar
from shared.protocol.sampling import Grammar
from tests.json_schemas import SCHEMAS

DEMO = Path(__file__).parents[1] / "deploy" / "demo_model" / "checkpoint"
NUM_WALKS = 2
WALK_LEN = 100
LARGE_VOCAB = 50_000
EOS_TEXT = "</s>"


class Walker(Protocol):
    """One output."""

    def mask(self) -> np.ndarray[Any, np.dtype[np.int32]]: ...

    def accept(self, token_id: int) -> bool: ...

    def is_over(self) -> bool: ...


def large_tokenizer() -> Tokenizer:
    """50,000 tokens: bytes, numbers, JSON punctuation, and words of syllables with their spaces."""
    starts, vowels, ends = "bcdfghjklmnprstvwz", "aeiou", ["", "n", "r", "s", "t", "l"]
    syllables = ["".join(each) for each in itertools.product(starts, vowels, ends)]
    words = itertools.chain(syllables, map("".join, itertools.product(syllables, syllables)))
    tokens = [EOS_TEXT, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokens += [str(i) for i in range(10, 1000)]
    tokens += ['",', '":', 'Ġ"', '{"', '"}', '"]', '["', "},", "],", "[]", "{}", "ĊĠĠ", "ĊĠĠĠĠ"]
    for word in words:
        tokens += [word, "Ġ" + word]
        if len(tokens) >= LARGE_VOCAB:
            break
    vocab = {token: i for i, token in enumerate(dict.fromkeys(tokens[:LARGE_VOCAB]))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([EOS_TEXT])
    return tokenizer


def tokenizer_of(vocab: str) -> tuple[Tokenizer, int]:
    """With the id of its end-of-turn token."""
    if vocab == "demo":
        tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
        eos: int = json.loads((DEMO / "config.json").read_text())["eos_token_id"]
        return tokenizer, eos
    tokenizer = large_tokenizer()
    return tokenizer, tokenizer.token_to_id(EOS_TEXT)


class TokenRefused(Exception):
    """A token that the mask allowed."""


class LLGuidance:
    def __init__(self, tokenizer: Tokenizer, eos: int) -> None:
        from llguidance import LLTokenizer

        self.vocab_size = tokenizer.get_vocab_size()
        self._tokenizer = LLTokenizer(tokenizer.to_str(), eos_token=eos)
        self._compiled: dict[str, Any] = {}

    def start(self, grammar: Grammar) -> Walker:
        """Raises ValueError for what it does not support."""
        from llguidance import LLMatcher

        from shared.grammar import grammar_source, parser_limits

        if grammar.text not in self._compiled:
            source = grammar_source(grammar)
            matcher = LLMatcher(self._tokenizer, source, limits=parser_limits(), log_level=0)
            if matcher.is_error():
                raise ValueError(matcher.get_error())
            self._compiled[grammar.text] = matcher
        return LLGuidanceWalker(self._compiled[grammar.text].deep_copy(), self.vocab_size)


class LLGuidanceWalker:
    def __init__(self, matcher: Any, vocab_size: int) -> None:
        self._matcher = matcher
        self._bits = np.zeros((1, -(-vocab_size // 32)), np.int32)

    def mask(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        return self._bits

    def accept(self, token_id: int) -> bool:
        return bool(self._matcher.consume_token(token_id))

    def is_over(self) -> bool:
        return bool(self._matcher.is_stopped())


class XGrammar:
    def __init__(self, tokenizer: Tokenizer, eos: int) -> None:
        import xgrammar

        self.vocab_size = tokenizer.get_vocab_size()
        tokens = [tokenizer.id_to_token(i) for i in range(self.vocab_size)]
        info = xgrammar.TokenizerInfo(
            tokens,
            xgrammar.VocabType.BYTE_LEVEL,
            vocab_size=self.vocab_size,
            stop_token_ids=[eos],
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1)

    def start(self, grammar: Grammar) -> Walker:
        """Raises RuntimeError for what it does not support."""
        import xgrammar

        compiled = self._compiler.compile_json_schema(grammar.text, strict_mode=False)
        return XGrammarWalker(xgrammar.GrammarMatcher(compiled), self.vocab_size)


class XGrammarWalker:
    def __init__(self, matcher: Any, vocab_size: int) -> None:
        import xgrammar

        self._matcher = matcher
        self._bits = xgrammar.allocate_token_bitmask(1, vocab_size)

    def mask(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        self._matcher.fill_next_token_bitmask(self._bits)
        return np.asarray(self._bits.numpy())

    def accept(self, token_id: int) -> bool:
        return bool(self._matcher.accept_token(token_id))

    def is_over(self) -> bool:
        return bool(self._matcher.is_terminated())


LIBRARIES = {"llguidance": LLGuidance, "xgrammar": XGrammar}


def measure(library: str, vocab: str) -> dict[str, Any]:
    """One library with one vocabulary, in this process."""
    tokenizer, eos = tokenizer_of(vocab)
    begin = time.perf_counter()
    backend = LIBRARIES[library](tokenizer, eos)
    load_s = time.perf_counter() - begin
    rss_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cold, warm, masks, accepts = [], [], [], []
    num_refused = num_untrue = num_whole = num_wrong = 0
    for seed, schema in enumerate(SCHEMAS.values()):
        wanted = resolve_grammar(GrammarFields(json_schema=schema))
        assert wanted is not None
        try:
            begin = time.perf_counter()
            backend.start(wanted.grammar)
            cold.append(time.perf_counter() - begin)
        except (ValueError, RuntimeError):
            num_refused += 1
            continue
        for walk in range(NUM_WALKS):
            begin = time.perf_counter()
            walker = backend.start(wanted.grammar)
            warm.append(time.perf_counter() - begin)
            source = random.Random(1000 * seed + walk)
            try:
                token_ids = _walk(walker, eos, source, masks, accepts)
            except TokenRefused:
                num_untrue += 1
                continue
            if token_ids is not None:
                num_whole += 1
                num_wrong += not _is_valid(tokenizer.decode(token_ids), schema)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "load_ms": 1e3 * load_s,
        "cold_ms": [1e3 * float(np.percentile(cold, q)) for q in (50, 99)],
        "warm_us": [1e6 * float(np.percentile(warm, q)) for q in (50, 99)],
        "mask_us": [1e6 * float(np.percentile(masks, q)) for q in (50, 99)],
        "accept_us": 1e6 * float(np.percentile(accepts, 50)),
        "memory_mib": (peak - rss_before) / 1024,
        "refused": num_refused,
        "untrue": num_untrue,
        "whole": num_whole,
        "wrong": num_wrong,
        "masks": len(masks),
    }


def _walk(
    walker: Walker, eos: int, source: random.Random, masks: list[float], accepts: list[float]
) -> list[int] | None:
    """The tokens of a complete output; None when it was longer than a walk."""
    token_ids: list[int] = []
    for _ in range(WALK_LEN):
        begin = time.perf_counter()
        bits = walker.mask()
        masks.append(time.perf_counter() - begin)
        allowed = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little"))
        if eos in allowed:
            return token_ids
        token_id = int(source.choice(allowed))
        begin = time.perf_counter()
        if not walker.accept(token_id):
            raise TokenRefused(token_id)
        accepts.append(time.perf_counter() - begin)
        token_ids.append(token_id)
        if walker.is_over():
            return token_ids
    return None


def _is_valid(text: str, schema: Any) -> bool:
    validator = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    try:
        checker = validator.FORMAT_CHECKER
        validator(schema, format_checker=checker).validate(json.loads(text))
    except (jsonschema.ValidationError, ValueError):
        return False
    return True


def main() -> None:
    if len(sys.argv) == 3:
        print(json.dumps(measure(sys.argv[1], sys.argv[2])))
        return
    print(f"{len(SCHEMAS)} schemas, {NUM_WALKS} walks of up to {WALK_LEN} tokens each")
    for vocab in ("demo", "50k"):
        for library in LIBRARIES:
            if importlib.util.find_spec(library) is None:
                print(f"{library}: not installed")
                continue
            command = [sys.executable, "-m", "bench.grammar", library, vocab]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found = json.loads(done.stdout)
            print(
                f"{library:10s} {vocab:4s} load {found['load_ms']:5.0f} ms, compile p50/p99 "
                "{:.2f}/{:.1f} ms".format(*found["cold_ms"]),
                "again {:.0f}/{:.0f} us".format(*found["warm_us"]),
                "mask {:.1f}/{:.0f} us".format(*found["mask_us"]),
                f"accept {found['accept_us']:.1f} us, memory +{found['memory_mib']:.0f} MiB,",
                f"schemas refused {found['refused']}, outputs with an untrue mask "
                f"{found['untrue']}, whole {found['whole']}, wrong {found['wrong']}",
                flush=True,
            )


if __name__ == "__main__":
    main()
