"""/infill as editors of llama.cpp use it: the text at a cursor, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from frontend.fields.unknown_fields import UnknownFields
from frontend.jobs.job import Caller, Job
from shared.checkpoint.tokenizer_bundle import TokenizerBundle
from shared.errors import RequestError
from shared.protocol.finish import Finish, FinishReason
from tests.frontend.conftest import Stack
from tests.frontend.directory import (
    FIM_MARKS,
    AllRequests,
    make_directory,
    make_filling_directory,
    tokenizer_with,
)
from tests.frontend.nats.test_nats_service import ask, ask_stream
from tests.frontend.sse import SseEvent, sse_events
from tests.frontend.tiny_model import make_bundle, make_card, register

BODY: dict[str, Any] = {"input_prefix": "def f(", "input_suffix": "return x"}
EXTRA = [{"filename": "a.py", "text": "x = 1\n"}, {"text": "y"}]
BEFORE, BEHIND, GAP = FIM_MARKS


async def job_of(*marks: str, caller: Caller | None = None, **fields: Any) -> Job:
    directory = make_filling_directory(*marks)
    return await AllRequests(directory).infill.job({**BODY, **fields}, caller or Caller())


async def prompt_of(*marks: str, **fields: Any) -> str:
    job = await job_of(*marks, **fields)
    ids = job.prompts[0].token_ids
    return str(tokenizer_with(*marks).decode(ids, skip_special_tokens=False))


async def test_the_prompt_is_llama_cpps() -> None:
    plain = f"{BEFORE}def f({BEHIND}return x{GAP}"
    assert await prompt_of(*FIM_MARKS) == f"<s>{plain}"
    assert await prompt_of(*FIM_MARKS, prompt="x)") == f"<s>{plain}x)"
    snippets = "\n\n--- snippet ---\n\nx = 1\n\n\n--- snippet ---\n\ny"
    assert await prompt_of(*FIM_MARKS, input_extra=EXTRA) == f"<s>{snippets}{plain}"
    files = "<|repo_name|>myproject\n<|file_sep|>a.py\nx = 1\n<|file_sep|>\ny<|file_sep|>filename\n"
    marks = (*FIM_MARKS, "<|repo_name|>", "<|file_sep|>")
    assert await prompt_of(*marks, input_extra=EXTRA) == f"<s>{files}{plain}"


async def test_n_predict_is_the_limit_and_marks_end_the_text() -> None:
    job = await job_of(*FIM_MARKS, n_predict=7, stop_token_ids=[5])
    assert job.sampling.max_tokens == 7
    ids = {tokenizer_with(*FIM_MARKS).token_to_id(mark) for mark in FIM_MARKS}
    assert set(job.sampling.params.stop_token_ids) == {5, *ids}
    assert (await job_of(*FIM_MARKS, n_predict=0)).sampling.max_tokens == 0
    assert (await job_of(*FIM_MARKS, n_predict=-1)).sampling.max_tokens is None
    assert (await job_of(*FIM_MARKS)).sampling.max_tokens is None


async def test_what_editors_send_is_taken_and_they_are_told_what_did_nothing() -> None:
    caller = Caller()
    job = await job_of(
        *FIM_MARKS,
        caller=caller,
        samplers=["top_k", "top_p", "infill"],
        top_k=40,
        top_p=0.9,
        temperature=0.3,
        cache_prompt=True,
        id_slot=0,
        n_indent=4,
        t_max_prompt_ms=500,
        t_max_predict_ms=1000,
        response_fields=["content"],
    )
    assert (job.sampling.params.top_k, job.sampling.params.temperature) == (40, 1.0)
    told = set(caller.unknown.headers()["x-unknown-fields"].split(", "))
    assert told == {"samplers.infill", "t_max_predict_ms", "n_indent"}
    strict = Caller(unknown=UnknownFields(are_refused=True))
    with pytest.raises(RequestError) as caught:
        await job_of(*FIM_MARKS, caller=strict, t_max_predict_ms=1000)
    assert caught.value.param == "t_max_predict_ms"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input_prefix": None}, "input_prefix"),
        ({"input_suffix": None}, "input_suffix"),
        ({"input_prefix": 7}, "input_prefix"),
        ({"input_extra": [{"filename": "a"}]}, "input_extra[0].text"),
        ({"input_extra": [{"text": "a"}] * 257}, "input_extra"),
        ({"prompt": [1, 2]}, "prompt"),
        ({"n": 2}, "n"),
        ({"n_probs": 3}, "n_probs"),
        ({"max_tokens": 3}, "max_tokens"),
        ({"n_predict": "x"}, "n_predict"),
        ({"mirostat": 2}, "mirostat"),
    ],
)
async def test_what_is_wrong_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        await job_of(*FIM_MARKS, **fields)
    assert (caught.value.status_code, caught.value.param) == (400, param)


async def test_a_model_without_marks_fills_nothing() -> None:
    with pytest.raises(RequestError) as caught:
        await AllRequests(make_directory()).infill.job(BODY, Caller())
    assert (caught.value.param, caught.value.code) == ("input_prefix", "unsupported_parameter")


async def serve_filling_model(stack: Stack) -> None:
    files = dict(make_bundle().files)
    files["tokenizer.json"] = tokenizer_with(*FIM_MARKS).to_str().encode()
    bundle = TokenizerBundle(files)
    card = make_card(bundle, vocab_size=300)
    await register(stack.cluster, bundle, card)


def _content(events: list[SseEvent]) -> str:
    return "".join(event.json["content"] for event in events)


@pytest.mark.integration
async def test_a_text_and_its_stream_say_the_same(stack: Stack) -> None:
    await serve_filling_model(stack)
    stack.say("x", ", y", "):")
    running = await stack.start_frontend()
    async with running.client() as client:
        response = await client.post("/infill", json=BODY | {"n_predict": 9})
        whole = response.json()
        body = BODY | {"stream": True, "n_predict": 9}
        async with client.stream("POST", "/infill", json=body) as streamed:
            events = [event async for event in sse_events(streamed)]
        rid, headers = response.headers["x-request-id"], {"Last-Event-ID": events[0].event_id}
        assert (await client.get(f"/v1/streams/{rid}?stream=false")).json() == whole
        path = f"/v1/streams/{events[0].event_id.partition('.')[0]}"
        async with client.stream("GET", path, headers=headers) as resumed:
            rest = [event async for event in sse_events(resumed)]
    assert (whole["content"], whole["stop"], whole["stop_type"]) == ("x, y):", True, "eos")
    assert (whole["tokens_predicted"], whole["model"]) == (3, "tiny")
    assert [event.json["stop"] for event in events] == [False] * (len(events) - 1) + [True]
    assert events[-1].json == whole | {"content": ""}
    assert _content(events) == "x, y):"
    assert _content([events[0], *rest]) == "x, y):"  # in as many events as text came at a time
    assert rest[-1].data == events[-1].data


@pytest.mark.integration
async def test_it_says_why_it_ended_and_over_nats_too(stack: Stack) -> None:
    await serve_filling_model(stack)

    stack.say("a", "b", finish=Finish(FinishReason.LENGTH))
    await stack.start_frontend()
    whole = json.loads((await ask(stack, "infill", BODY)).data)
    assert (whole["stop_type"], whole["stopping_word"]) == ("limit", "")
    messages = await ask_stream(stack, "infill", BODY | {"stream": True})
    events = [json.loads(message.data) for message in messages if message.data]
    assert "".join(event["content"] for event in events) == "ab"
    assert events[-1]["stop"]
