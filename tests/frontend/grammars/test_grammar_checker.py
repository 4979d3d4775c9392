"""Grammars are tried in children: bombs go off there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from frontend.grammars.checker import GrammarChecker
from shared.errors import InvalidRequest
from shared.protocol.sampling import Grammar, GrammarKind
from tests.eventually import eventually
from tests.frontend.conftest import Stack
from tests.frontend.fields.test_validation import chat_body, completion_body

pytestmark = pytest.mark.e2e

# Beyond what the checks of the text let through: this is about the children. SLOW takes 15 s.
SLOW = Grammar(GrammarKind.JSON_SCHEMA, '{"type":"integer","multipleOf":1234577}', "test")
HUNGRY = Grammar(GrammarKind.REGEX, "((a{1000}){1000}){1000}", "test")


@pytest.fixture
async def checker() -> AsyncIterator[GrammarChecker]:
    checker = GrammarChecker()
    yield checker
    checker.close()


async def refusal(checker: GrammarChecker, grammar: Grammar) -> str:
    with pytest.raises(InvalidRequest) as caught:
        await checker.check(grammar, "field")
    assert caught.value.param == "field"
    return caught.value.message


async def test_what_cannot_be_compiled_is_told(checker: GrammarChecker) -> None:
    await checker.check(Grammar(GrammarKind.REGEX, "a+", "test"), "field")
    wrong = {
        GrammarKind.REGEX: ("(a", "unclosed group"),
        GrammarKind.EBNF: ("root ::= missing", "missing"),
        GrammarKind.JSON_SCHEMA: ('{"$ref":"#"}', "no output can satisfy it"),
    }
    for kind, (text, words) in wrong.items():
        assert words in await refusal(checker, Grammar(kind, text, "test"))


async def test_bombs_end_in_time_and_hurt_nobody(checker: GrammarChecker) -> None:
    await checker.check(Grammar(GrammarKind.REGEX, "warm", "test"), "field")
    begin = time.monotonic()
    slow = asyncio.create_task(refusal(checker, SLOW))
    await asyncio.sleep(0)
    await checker.check(Grammar(GrammarKind.REGEX, "beside it", "test"), "field")
    assert not slow.done()
    assert "more than 1 s" in await slow
    assert time.monotonic() - begin < 40  # the second is of CPU time, on a busy machine
    assert await refusal(checker, HUNGRY)
    await checker.check(Grammar(GrammarKind.REGEX, "after them", "test"), "field")


async def test_an_outcome_is_remembered(
    checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await refusal(checker, SLOW)
    monkeypatch.delattr(GrammarChecker, "_try")  # nothing is tried again
    assert await refusal(checker, SLOW) == first


async def test_a_cancelled_check_takes_its_child_along(checker: GrammarChecker) -> None:
    await checker.check(Grammar(GrammarKind.REGEX, "warm", "test"), "field")
    task = asyncio.create_task(checker.check(SLOW, "field"))
    await eventually(lambda: not checker._idle)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for text in ("a", "b", "c"):  # more than there are children: each answers its own question
        await checker.check(Grammar(GrammarKind.REGEX, text, "test"), "field")


@pytest.mark.integration
async def test_the_surface_refuses_bombs_and_sends_grammars(stack: Stack) -> None:
    running = await stack.start_frontend()
    stack.say("{}")
    bombs: list[tuple[str, dict[str, Any], str]] = [
        ("/v1/chat/completions", chat_body(regex="(a{1000}){1000}"), "regex"),
        (
            "/v1/chat/completions",
            chat_body(
                response_format={"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}
            ),
            "response_format.json_schema.schema",
        ),
        ("/v1/completions", completion_body(ebnf='root ::= b\nb ::= "a" b'), "ebnf"),
        ("/generate", {"text": "Hi", "sampling_params": {"regex": "(a"}}, "regex"),
    ]
    async with running.client() as client:
        for path, body, param in bombs:
            answer = await client.post(path, json=body)
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"]["param"] == param
        assert not stack.backend.runs
        body = chat_body(response_format={"type": "json_object"})
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
        body = {"text": "Hi", "sampling_params": {"json_schema": '{"type": "null"}', "n": 2}}
        assert (await client.post("/generate", json=body)).status_code == 200
    grammars = [run.request.sampling.grammar for run in stack.backend.runs.values()]
    texts = [grammar.text for grammar in grammars if grammar is not None]
    assert texts == ['{"type":"object"}', '{"type":"null"}', '{"type":"null"}']
