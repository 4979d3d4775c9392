"""`python -m frontend.grammars.trial`: compiles grammars of clients where nothing can be hurt."""

from __future__ import annotations

import random
import re
import resource
import signal
import struct
import sys
from typing import BinaryIO

import msgspec
from llguidance import LLMatcher, LLTokenizer

from shared.errors import GrammarError
from shared.grammar import grammar_source, parser_limits
from shared.protocol.sampling import Grammar, GrammarKind

CPU_LIMIT_S = 1.0
MEMORY_BYTES = 1 << 30
LENGTH = struct.Struct("<I")
_TOKEN_REF = re.compile(r"<\[\d+\]>")  # a token of the model's vocabulary
_ANY_REF = "<[256]>"  # one that is no byte
_NUM_WALKS = 3
_WALK_LEN = 24
_MAX_ERROR_CHARS = 400


def main() -> None:
    """One grammar after the other, from stdin; to stdout what is wrong with each, "" if nothing.

    Who takes too long is ended by a signal: nothing in this process needs to be saved.
    """
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    tokenizer = LLTokenizer("byte")
    decoder = msgspec.msgpack.Decoder(Grammar)
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    _send(sink, "")  # ready
    while (frame := _receive(source)) is not None:
        grammar = decoder.decode(frame)
        signal.setitimer(signal.ITIMER_PROF, CPU_LIMIT_S)
        error = try_grammar(grammar, tokenizer)
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        _send(sink, error)


def try_grammar(grammar: Grammar, tokenizer: LLTokenizer) -> str:
    """Compiles it, and lets a few outputs begin: "" when all went well."""
    try:
        if grammar.kind is GrammarKind.LARK:
            text = _TOKEN_REF.sub(_ANY_REF, grammar.text)
            grammar = msgspec.structs.replace(grammar, text=text)
        source = grammar_source(grammar)
    except GrammarError as exc:
        return str(exc)
    matcher = LLMatcher(tokenizer, source, limits=parser_limits(), log_level=0)
    for seed in range(_NUM_WALKS):
        walked = _walk(matcher, random.Random(seed))
        if walked:
            return walked
        matcher.reset()
    return ""


def _walk(matcher: LLMatcher, source: random.Random) -> str:
    if matcher.is_error():
        return _short(matcher.get_error())
    for _ in range(_WALK_LEN):
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        if matcher.is_error():
            return _short(matcher.get_error())
        if matcher.is_stopped():
            return "" if matcher.is_accepting() else "no output can satisfy it"
        allowed = [token_id for token_id in range(mask.bit_length()) if mask >> token_id & 1]
        matcher.consume_token(source.choice(allowed))
    return ""


def _short(error: str) -> str:
    if error.startswith("NoExtension"):
        return "no output can satisfy it"
    words = error.split("<state>")[0].replace("<non-verbose/>", "").split()
    return " ".join(words)[:_MAX_ERROR_CHARS]


def _receive(source: BinaryIO) -> bytes | None:
    head = source.read(LENGTH.size)
    return source.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else None


def _send(sink: BinaryIO, text: str) -> None:
    body = text.encode()
    sink.write(LENGTH.pack(len(body)) + body)
    sink.flush()


if __name__ == "__main__":
    main()
