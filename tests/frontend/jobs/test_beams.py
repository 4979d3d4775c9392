"""Beam search: one request a prompt, several choices told at its end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from frontend.jobs.job import Caller
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.sampling import BeamParams, EarlyStopping
from shared.protocol.sealed_replies import unseal
from tests.frontend.conftest import Stack
from tests.frontend.directory import AllRequests, make_directory
from tests.frontend.fields.test_validation import (
    assert_refused,
    chat,
    chat_body,
    completion,
    completion_body,
    requests_of,
)
from tests.frontend.nats.test_nats_service import ask
from tests.frontend.surfaces.test_embeddings import put_card

BEAMS: dict[str, Any] = {"use_beam_search": True}
TOOL = {"type": "function", "function": {"name": "now"}}
LENGTH = Finish(FinishReason.LENGTH)


async def test_width_and_number_of_choices() -> None:
    for fields, beam in (
        ({}, BeamParams(1, 1)),
        ({"n": 3}, BeamParams(3, 3)),
        ({"n": 3, "beam_width": 5}, BeamParams(5, 3)),
        ({"n": 2, "best_of": 4}, BeamParams(4, 2)),
        (
            {"n": 16, "length_penalty": 0.5, "early_stopping": True},
            BeamParams(16, 16, 0.5, EarlyStopping.NOW),
        ),
        ({"early_stopping": False}, BeamParams(1, 1)),
        ({"early_stopping": "never"}, BeamParams(1, 1, 1.0, EarlyStopping.CERTAIN)),
    ):
        (request,) = await completion(**BEAMS, **fields)
        assert (request.sampling.beam, unseal(request.reply).num_beams) == (beam, beam.num_kept)
        if "best_of" not in fields:
            assert (await chat(**BEAMS, **fields)).sampling.beam == beam


async def test_a_models_own_defaults_count_for_nothing() -> None:
    directory = make_directory(
        default_temperature=0.6, default_top_k=20, default_repetition_penalty=1.1
    )
    (request,) = requests_of(await AllRequests(directory).chat.job(chat_body(**BEAMS), Caller()))
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_k, sampling.repetition_penalty) == (0.0, 0, 1.0)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": True}, "stream"),
        ({"temperature": 0.5}, "temperature"),
        ({"top_p": 0.9}, "top_p"),
        ({"top_k": 4}, "top_k"),
        ({"min_p": 0.1}, "min_p"),
        ({"presence_penalty": 1}, "presence_penalty"),
        ({"frequency_penalty": 1}, "frequency_penalty"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"min_tokens": 2}, "min_tokens"),
        ({"stop": "x"}, "stop"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"allowed_token_ids": [5]}, "allowed_token_ids"),
        ({"bad_words": ["x"]}, "bad_words"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"guided_regex": "a+"}, "guided_regex"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"n": 3, "beam_width": 2}, "beam_width"),
        ({"beam_width": 17}, "beam_width"),
        ({"n": 0}, "n"),
        ({"length_penalty": 11}, "length_penalty"),
    ],
)
async def test_what_it_has_no_use_for_is_refused(fields: dict[str, Any], param: str) -> None:
    await assert_refused("chat", chat_body(**BEAMS, **fields), 400, param, "invalid_value")
    await assert_refused(
        "completions", completion_body(**BEAMS, **fields), 400, param, "invalid_value"
    )


async def test_of_one_route_or_without_a_search() -> None:
    code = "invalid_value"
    await assert_refused("chat", chat_body(**BEAMS, logprobs=True), 400, "logprobs", code)
    await assert_refused("chat", chat_body(**BEAMS, tools=[TOOL]), 400, "tools", code)
    await assert_refused("completions", completion_body(**BEAMS, logprobs=0), 400, "logprobs", code)
    body = completion_body(**BEAMS, echo=True, max_tokens=0)
    await assert_refused("completions", body, 400, "max_tokens", code)
    for name, value in (("beam_width", 2), ("length_penalty", 2), ("early_stopping", "never")):
        await assert_refused("chat", chat_body(**{name: value}), 400, name, code)
    body = {"text": "Hi", **BEAMS}
    await assert_refused("generate", body, 400, "use_beam_search", "unsupported_parameter")
    neutral: list[tuple[str, Any]] = [
        ("beam_width", 1),
        ("length_penalty", 1.0),
        ("early_stopping", False),
    ]
    for name, value in neutral:
        assert (await chat(**{name: value})).sampling.beam is None


async def test_what_no_message_has_room_for() -> None:
    """100,000 bytes, as these tests have it: 12 for each token of each choice."""
    requests = AllRequests(make_directory("tiny", max_context_len=9000))
    (request,) = requests_of(await requests.chat.job(chat_body(**BEAMS, n=2), Caller()))
    assert request.sampling.max_tokens == 100_000 // 24
    with pytest.raises(Exception, match="'use_beam_search' and 2 choices there is room for 4166"):
        requests_of(await requests.chat.job(chat_body(**BEAMS, n=2, max_tokens=5000), Caller()))


@pytest.mark.integration
async def test_choices_as_both_routes_tell_them(stack: Stack) -> None:
    stack.say("ab", "c")
    first, second = await stack.start_frontend(), await stack.start_frontend()
    async with first.client() as client, second.client() as other:
        body = chat_body(**BEAMS, n=2, beam_width=3, return_token_ids=True)
        answer = (await client.post("/v1/chat/completions", json=body)).json()
        assert [choice["message"]["content"] for choice in answer["choices"]] == ["abc0", "abc1"]
        assert [choice["finish_reason"] for choice in answer["choices"]] == ["stop", "length"]
        assert [choice["cumulative_logprob"] for choice in answer["choices"]] == [-1.5, -3.0]
        assert [choice["token_ids"] for choice in answer["choices"]] == [[65], [66, 66]]
        assert answer["usage"]["completion_tokens"] == 3
        assert stack.backend.num_served == 1

        rid = answer["id"].removeprefix("chatcmpl-")
        again = await other.get(f"/v1/streams/{rid}?stream=false")
        assert again.json() == answer
        refused = await other.get(f"/v1/streams/{rid}")
        assert refused.status_code == 400
        assert "use_beam_search" in refused.json()["error"]["message"]

        body = completion_body(**BEAMS, n=2, prompt=["Hi", "Ho"], echo=True)
        answer = (await client.post("/v1/completions", json=body)).json()
        told = [(choice["index"], choice["text"]) for choice in answer["choices"]]
        assert told == [(0, "Hiabc0"), (1, "Hiabc1"), (2, "Hoabc0"), (3, "Hoabc1")]
        assert answer["usage"]["completion_tokens"] == 6


@pytest.mark.integration
async def test_over_nats_and_from_a_worker_that_knows_no_beams(stack: Stack) -> None:
    running = await stack.start_frontend()
    message = await ask(stack, "chat.completions", chat_body(**BEAMS, n=2))
    choices = json.loads(message.data)["choices"]
    assert [choice["message"]["content"][-1] for choice in choices] == ["0", "1"]
    stack.say("x", finish=LENGTH)
    async with running.client() as client:
        answer = await client.post("/v1/completions", json=completion_body(**BEAMS))
    assert answer.status_code == 500
    assert "no beam search" in answer.json()["error"]["message"]


@pytest.mark.integration
async def test_of_a_model_that_keeps_states(stack: Stack) -> None:
    """It is not queued; sampling is."""
    await put_card(stack, keeps_states=True)
    running = await stack.start_frontend()
    async with running.client() as client:
        for route, body in (
            ("/v1/completions", completion_body(**BEAMS, n=2)),
            ("/v1/completions", completion_body(**BEAMS, best_of=2)),
            ("/v1/chat/completions", chat_body(**BEAMS)),
        ):
            answer = await client.post(route, json=body)
            assert answer.status_code == 400
            error = answer.json()["error"]
            assert error["param"] == "use_beam_search"
            assert "the state of its recurrent layers" in error["message"]
        assert not stack.backend.runs
        answer = await client.post("/v1/completions", json=completion_body(n=2))
    assert answer.status_code == 200
