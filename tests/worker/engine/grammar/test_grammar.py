"""Requests with a grammar: what they put out, alone and among others, resumed and retracted."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from shared.grammar import grammar_engine
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.sampling import Grammar, GrammarKind
from tests.worker.engine.cuda.late_device import LateDevice
from tests.worker.engine.cuda.test_gpu_engine import GpuRig
from tests.worker.engine.json_llama import EOS_ID, decode, encode, json_tokenizer, save_json_llama
from tests.worker.engine.tiny_models import Rig
from tests.worker.engine_fakes import make_add
from worker.engine.grammar.grammar_matcher import CompiledGrammar
from worker.engine.grammar.grammar_queue import GrammarQueue
from worker.engine.grammar.llguidance_backend import LLGuidanceBackend
from worker.engine_link.engine_messages import AbortRequest, AddRequest

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "bb", "ccc"]}, "maxItems": 6},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
SUM = """
root ::= term (op term){2,5}
term ::= number | "(" term op term ")"
number ::= [1-9] [0-9]{0,2}
op ::= " " [-+*/] " "
"""
LARK_LIST = """
start: "- " ITEM ("\\n- " ITEM)* "."
ITEM: /[a-z]{2,5}/
"""
GREEDY = {"temperature": 0.0}
SEEDED: dict[str, Any] = {"temperature": 1.0, "seed": 2**63 + 5}


def grammar(kind: GrammarKind, text: Any, **options: Any) -> Grammar:
    return Grammar(
        kind, text if isinstance(text, str) else json.dumps(text), grammar_engine(), **options
    )


PERSON_GRAMMAR = grammar(GrammarKind.JSON_SCHEMA, PERSON)


def add(
    run_id: int, wanted: Grammar | None, output: list[int] | None = None, **sampling: Any
) -> AddRequest:
    prompt = encode("Say something: ")
    return make_add(
        run_id, prompt, output or [], **({"max_tokens": 300, "grammar": wanted} | sampling)
    )


@pytest.fixture(scope="session")
def json_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_json_llama(tmp_path_factory.mktemp("json_llama"))


@pytest.fixture(scope="module")
def rig(json_llama: Path) -> Rig:
    return Rig(json_llama)


def texts(rig: Rig, *wanted: Grammar, **sampling: Any) -> list[str]:
    """What a fresh look at each gives; all must stop."""
    rig.channel.events.clear()
    outputs = rig.run(*(add(i, each, **sampling) for i, each in enumerate(wanted, start=next_id())))
    assert {finish.reason for finish in rig.channel.finishes().values()} == {FinishReason.STOP}
    return [decode(outputs[run_id]) for run_id in sorted(outputs)]


def next_id(taken: list[int] = [100]) -> int:  # noqa: B006 - it counts over all tests
    taken[0] += 1000
    return taken[0]


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_outputs_are_of_their_grammar(rig: Rig, sampling: dict[str, Any]) -> None:
    regexes = [
        r"[a-f]{3}-\d{2}",
        r"(yes|no), (sir|madam)[.!]",
        r"^[a-z]{1,9}@[a-z]{1,9}\.(com|org)$",
        r"naïve|日本|🙂",
        r"(?i)hello( world)?",
        r"/a/\[b\]\"c\"",
        r"[0-9]{4}-(0[1-9]|1[0-2])",
    ]
    for regex, text in zip(
        regexes,
        texts(rig, *(grammar(GrammarKind.REGEX, each) for each in regexes), **sampling),
        strict=True,
    ):
        assert re.fullmatch(regex, text), (regex, text)
    choices = ["red", "green", 'say "hi"', "日本", "red and green", "a\nb"]
    (chosen,) = texts(rig, grammar(GrammarKind.CHOICE, choices), **sampling)
    assert chosen in choices
    (total,) = texts(rig, grammar(GrammarKind.EBNF, SUM), **sampling)
    assert isinstance(eval(total), (int, float)), total
    assert re.fullmatch(r"[0-9()+*/ -]+", total)
    (listed,) = texts(rig, grammar(GrammarKind.EBNF, LARK_LIST), **sampling)
    assert re.fullmatch(r"- [a-z]{2,5}(\n- [a-z]{2,5})*\.", listed)
    (person,) = texts(rig, PERSON_GRAMMAR, **sampling)
    assert set(json.loads(person)) == {"name", "age", "tags"}


def test_whitespace_of_json_is_what_was_asked_for(rig: Rig) -> None:
    compact = grammar(GrammarKind.JSON_SCHEMA, PERSON, whitespace="")
    wide = grammar(GrammarKind.JSON_SCHEMA, PERSON, whitespace=r"\n")
    texts_by_kind = texts(rig, compact, wide, **SEEDED)
    value = json.loads(texts_by_kind[0])
    assert texts_by_kind[0] == json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    assert "\n" in texts_by_kind[1]


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_resumed_anywhere(json_llama: Path, sampling: dict[str, Any]) -> None:
    whole = Rig(json_llama).run(add(1, PERSON_GRAMMAR, **sampling))[1]
    assert len(whole) > 12
    rig = Rig(json_llama, max_step_tokens=32)
    for num_made in range(1, len(whole), 11):
        rest = rig.run(add(num_made, PERSON_GRAMMAR, whole[:num_made], **sampling))[num_made]
        assert whole[:num_made] + rest == whole
    rig.run(add(999, PERSON_GRAMMAR, whole, **sampling))
    assert rig.channel.finishes()[999] == Finish(FinishReason.STOP)
    assert rig.channel.tokens()[999] == []


def company() -> list[AddRequest]:
    prompts = [encode('{"name": "Ada", "age": 36} ' * n) for n in (1, 2, 5, 9, 14)]
    return [
        make_add(i, prompt, max_tokens=4 * i, ignore_eos=True, temperature=i % 2, seed=i)
        for i, prompt in enumerate(prompts, start=11)
    ]


def test_retractions_change_nothing(json_llama: Path) -> None:
    subjects = [add(i, PERSON_GRAMMAR, **SEEDED | {"seed": i}) for i in (1, 2, 3)]
    alone = Rig(json_llama).run(*subjects)
    rig = Rig(json_llama, num_kv_tokens=256)
    tokens = rig.run(*company(), *subjects)
    assert rig.channel.steps[-1].load.num_preemptions > 0
    assert {i: tokens[i] for i in (1, 2, 3)} == alone


@pytest.mark.parametrize("device", ["cpu", "late GPU"])
def test_overlap_changes_nothing(json_llama: Path, device: str) -> None:
    """Steps are computed before their masks are known, which the token before them decides."""
    adds = [*company(), add(8, None, **SEEDED), add(9, PERSON_GRAMMAR, temperature=0.0, logprobs=2)]
    expected = Rig(json_llama)
    expected.run(*adds)
    gpu = LateDevice() if device != "cpu" else None
    rig = GpuRig(json_llama, gpu, overlap=True, max_step_tokens=48)
    assert rig.run(*adds) == expected.channel.tokens()
    ours, theirs = rig.channel.finishes(), expected.channel.finishes()
    assert {run_id: each.reason for run_id, each in ours.items()} == {
        run_id: each.reason for run_id, each in theirs.items()
    }
    if gpu is not None:
        assert gpu.max_waiting > 1, "no step was launched before the last one was done"


def test_ordinary_requests_do_not_notice(json_llama: Path) -> None:
    alone = Rig(json_llama)
    alone.run(*company())
    rig = Rig(json_llama)
    rig.run(*company(), *(add(i, PERSON_GRAMMAR, **SEEDED | {"seed": i}) for i in (1, 2, 3)))
    for run_id in range(11, 16):
        assert rig.channel.tokens()[run_id] == alone.channel.tokens()[run_id]
        keys = [key for key in alone.logits if key[0] == run_id]
        assert keys
        assert all(rig.logits[key].equal(alone.logits[key]) for key in keys)


def test_complete_outputs_stop_before_min_tokens(rig: Rig) -> None:
    """A grammar has the last word: nothing can be added to a complete output."""
    short = grammar(GrammarKind.CHOICE, ["yes", "no"])
    assert texts(rig, short, min_tokens=50, **SEEDED)[0] in ("yes", "no")


def test_min_tokens_keeps_an_optional_end_away(rig: Rig) -> None:
    letters = grammar(GrammarKind.REGEX, "[a-z]*")
    run_id = next_id()
    rig.run(add(run_id, letters, min_tokens=40, max_tokens=60, **SEEDED))
    token_ids = rig.channel.tokens()[run_id]
    assert EOS_ID not in token_ids[:39]


def test_ignore_eos_goes_on_while_it_can(rig: Rig) -> None:
    first = next_id()
    letters, bounded = (grammar(GrammarKind.REGEX, regex) for regex in ("[a-z]*", "[a-z]{0,30}"))
    rig.run(
        add(first, letters, ignore_eos=True, max_tokens=80, **SEEDED),
        add(first + 1, bounded, ignore_eos=True, max_tokens=80, **SEEDED),
    )
    tokens, finishes = rig.channel.tokens(), rig.channel.finishes()
    assert finishes[first].reason is FinishReason.LENGTH
    assert EOS_ID not in tokens[first]
    assert finishes[first + 1] == Finish(FinishReason.STOP)
    assert re.fullmatch("[a-z]{30}", decode(tokens[first + 1]))


def test_an_end_that_is_sampled_is_told_as_such(rig: Rig) -> None:
    run_id = next_id()
    rig.run(add(run_id, grammar(GrammarKind.REGEX, "a?b?c?d*"), **SEEDED))
    assert rig.channel.tokens()[run_id][-1] == EOS_ID
    assert rig.channel.finishes()[run_id].matched == EOS_ID


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (grammar(GrammarKind.REGEX, "(unclosed"), "invalid regex"),
        (grammar(GrammarKind.JSON_SCHEMA, {"not": {"type": "string"}}), "not"),
        (grammar(GrammarKind.JSON_SCHEMA, "[]"), "schema"),
        (grammar(GrammarKind.EBNF, "root ::= missing"), "missing"),
    ],
)
def test_a_grammar_that_cannot_be_used_is_an_error(rig: Rig, wanted: Grammar, words: str) -> None:
    run_id = next_id()
    rig.run(add(run_id, wanted))
    finish = rig.channel.finishes()[run_id]
    assert finish.reason is FinishReason.ERROR
    assert words in str(finish.message)


def test_output_of_another_grammar_is_an_error(rig: Rig) -> None:
    run_id = next_id()
    rig.run(add(run_id, PERSON_GRAMMAR, encode("{ no")))
    finish = rig.channel.finishes()[run_id]
    assert finish.reason is FinishReason.ERROR
    assert grammar_engine() in str(finish.message)


def test_a_grammar_that_explodes_fails_alone(json_llama: Path) -> None:
    """It compiles, and its second mask is beyond the limits."""
    properties = {f"p{i}": {"type": "null"} for i in range(1100)}
    bomb = grammar(GrammarKind.JSON_SCHEMA, {"type": "object", "properties": properties})
    rig = Rig(json_llama)
    rig.run(add(1, bomb, **SEEDED), add(2, PERSON_GRAMMAR, **SEEDED))
    finishes = rig.channel.finishes()
    assert finishes[1].reason is FinishReason.ERROR
    assert "the grammar" in str(finishes[1].message)
    assert finishes[2].reason is FinishReason.STOP


def test_a_model_without_a_tokenizer_tells_why(tiny_llama: Path) -> None:
    rig = Rig(tiny_llama)
    rig.run(make_add(1, [5], grammar=PERSON_GRAMMAR), make_add(2, [5], max_tokens=2))
    assert rig.channel.finishes()[1].reason is FinishReason.ERROR
    assert "tokenizer" in str(rig.channel.finishes()[1].message)
    assert len(rig.channel.tokens()[2]) == 2


class GatedBackend(LLGuidanceBackend):
    """Compiles when it is let."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, 420, [EOS_ID], 1)
        self.gate = threading.Event()
        self.num_compiled = 0

    def compile(self, grammar: Grammar) -> CompiledGrammar:  # type: ignore[override]
        assert self.gate.wait(10)
        self.num_compiled += 1
        return super().compile(grammar)


def gated_rig(path: Path, timeout_s: float = 10.0) -> tuple[Rig, GatedBackend]:
    rig, backend = Rig(path), GatedBackend(path)
    rig.engine._grammar_queue = GrammarQueue(backend, timeout_s)
    return rig, backend


def test_others_run_while_a_grammar_is_compiled(json_llama: Path) -> None:
    rig, backend = gated_rig(json_llama)
    rig.channel.commands = [add(1, PERSON_GRAMMAR, **SEEDED), *company()]
    while len(rig.channel.finishes()) < 5:
        rig.loop.turn()
    assert 1 not in rig.channel.tokens()
    assert rig.channel.steps[-1].load.num_waiting == 1
    backend.gate.set()
    rig.run()
    assert rig.channel.finishes()[1].reason is FinishReason.STOP


def test_a_compilation_that_takes_too_long_is_given_up(json_llama: Path) -> None:
    rig, backend = gated_rig(json_llama, timeout_s=0.1)
    rig.run(add(1, PERSON_GRAMMAR), add(2, None, max_tokens=3, ignore_eos=True))
    assert "within 0.1 s" in str(rig.channel.finishes()[1].message)
    assert len(rig.channel.tokens()[2]) == 3
    backend.gate.set()


def test_an_abort_leaves_the_queue(json_llama: Path) -> None:
    rig, backend = gated_rig(json_llama)
    rig.run(add(1, PERSON_GRAMMAR), AbortRequest(1))
    assert len(rig.engine._grammar_queue) == 0
    assert 1 not in rig.channel.finishes()
    assert rig.channel.steps[-1].load.num_waiting == 0
    backend.gate.set()


def test_whoever_waits_gives_signs_of_life(json_llama: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("worker.engine.loop.engine.SIGN_OF_LIFE_S", 0.05)
    rig, backend = gated_rig(json_llama)
    threading.Timer(0.5, backend.gate.set).start()
    rig.run(add(1, PERSON_GRAMMAR, **SEEDED))
    before_first_token = next(i for i, step in enumerate(rig.channel.steps) if step.outputs)
    assert before_first_token > 3


def test_a_grammar_is_compiled_once(json_llama: Path) -> None:
    rig, backend = gated_rig(json_llama)
    backend.gate.set()
    rig.run(add(1, PERSON_GRAMMAR, **SEEDED))
    rig.run(*(add(i, PERSON_GRAMMAR, **SEEDED) for i in (2, 3)))
    assert backend.num_compiled == 1
    assert rig.channel.tokens()[2] == rig.channel.tokens()[1]


# As trained models do, the longest tokens first: mostly the tokenizer's cut.
CANONICAL = tuple(
    (token_id, 9.0 * len(token)) for token, token_id in json_tokenizer().get_vocab().items()
)
FORCED = grammar(GrammarKind.REGEX, r'(\{"name": "Ada", "age": 3[67], "tags": \[\]\} ){6}end')


def one_by_one(path: Path, *adds: AddRequest) -> dict[int, list[int]]:
    """Their tokens, a step each."""
    rig = Rig(path)
    rig.engine._scheduler._drafter = None
    rig.engine._scheduler._reqs._drafter = None
    return rig.run(*adds)


def test_of_guesses_only_those_are_made_that_a_grammar_allows(json_llama: Path) -> None:
    """A sequence of its own digits, which has many ways at each place."""
    digits = grammar(GrammarKind.REGEX, "[12]{40}")
    adds = [add(run_id, digits, temperature=0.3, seed=run_id) for run_id in range(3)]
    expected = one_by_one(json_llama, *adds)
    rig = Rig(json_llama, speculate="ngram", min_ngram_len=1)
    assert rig.run(*adds) == expected
    load = rig.channel.steps[-1].load
    assert 0 < load.num_accepted < load.num_drafted
    matcher = LLGuidanceBackend(json_llama, 512, [0], 1).compile(digits).matcher()
    one, letter = encode("1")[0], encode("a")[0]
    assert [matcher.num_allowed(ids) for ids in ([one, letter], [letter], [one, one])] == [1, 0, 2]


@pytest.mark.parametrize(
    "config",
    [pytest.param({}, marks=pytest.mark.nightly), {"overlap": True}, {"speculate": "ngram"}],
    ids=str,
)
def test_what_must_come_takes_fewer_steps(json_llama: Path, config: dict[str, Any]) -> None:
    """Every token is the one that a step of its own would choose, however the model cuts the text;
    min_tokens, penalties and logprobs count what was guessed.
    """
    controls: dict[str, Any] = {"logprobs": 1, "min_tokens": 9, "frequency_penalty": 0.1}
    adds = [
        add(1, FORCED, temperature=0.0, logit_bias=CANONICAL),
        add(2, FORCED, temperature=0.7, seed=2, logit_bias=CANONICAL, **controls),
        add(3, FORCED, **SEEDED),
        add(4, PERSON_GRAMMAR, **SEEDED),
        add(5, None, **SEEDED),
    ]
    expected = one_by_one(json_llama, *adds)
    rig = Rig(json_llama, max_step_tokens=64, **config)
    assert rig.run(*adds) == expected
    load = rig.channel.steps[-1].load
    assert load.num_accepted > len(expected[1]) // 2
    rig = Rig(json_llama, **config)
    rest = rig.run(add(1, FORCED, expected[1][:7], temperature=0.0, logit_bias=CANONICAL))[1]
    assert expected[1][:7] + rest == expected[1]
    assert len(rig.channel.steps) < len(rest) // 2
