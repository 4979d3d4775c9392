"""The APIs as OpenAI's own client reads them, over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam

from shared.protocol.finish import Finish, FinishReason
from shared.protocol.request import GenerateRequest
from tests.eventually import eventually
from tests.frontend.conftest import Stack
from tests.frontend.fake_backend import Script

pytestmark = pytest.mark.integration

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hi"}]


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[AsyncOpenAI]:
    running = await stack.start_frontend()
    async with AsyncOpenAI(
        base_url=f"{running.url}/v1", api_key="none", max_retries=0, timeout=20
    ) as client:
        yield client


async def test_chat(client: AsyncOpenAI, stack: Stack) -> None:
    answer = await client.chat.completions.create(model="tiny", messages=MESSAGES)
    assert answer.id.startswith("chatcmpl-")
    assert answer._request_id == answer.id.removeprefix("chatcmpl-")
    assert answer.choices[0].message.content == "Hello, world!"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    run = next(iter(stack.backend.runs.values()))
    assert answer.usage is not None
    assert (
        answer.usage.prompt_tokens
        == run.reply.num_prompt_tokens
        == len("user\nHi\nassistant\n") + 3
    )
    assert answer.usage.completion_tokens == 3
    assert run.request.sampling.max_tokens == 512 - run.reply.num_prompt_tokens


async def test_chat_stream_with_usage(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert len({(chunk.id, chunk.created, chunk.model, chunk.object) for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == "Hello, world!"
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 2) + [
        "stop"
    ]
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 3


async def test_stream_without_usage_never_has_empty_choices(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
    chunks = [chunk async for chunk in stream]
    assert all(chunk.choices for chunk in chunks)


async def test_completion_of_several_prompts(client: AsyncOpenAI, stack: Stack) -> None:
    def script(request: GenerateRequest) -> Script:
        return Script([f"<{request.reply.choice_idx}>"], Finish(FinishReason.LENGTH))

    stack.answer(script)
    answer = await client.completions.create(
        model="tiny", prompt=["ab", "c"], n=2, echo=True, seed=7
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in answer.choices] == ["ab<0>", "ab<1>", "c<2>", "c<3>"]
    assert {choice.finish_reason for choice in answer.choices} == {"length"}
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 3 + 2
    assert answer.usage.completion_tokens == 4
    by_index = {run.reply.choice_idx: run.request for run in stack.backend.runs.values()}
    assert [by_index[i].sampling.seed for i in range(4)] == [7, 8, 7, 8]
    assert by_index[0].sampling.max_tokens == 16


async def test_completion_stream(client: AsyncOpenAI) -> None:
    stream = await client.completions.create(model="tiny", prompt=[1, 2, 3], stream=True, echo=True)
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].text for chunk in chunks)
    assert text.endswith("Hello, world!")
    assert len(text) > len("Hello, world!")


async def test_n_choices_in_a_stream(client: AsyncOpenAI, stack: Stack) -> None:
    stack.answer(lambda request: Script(["a", "b", str(request.reply.choice_idx)], delay_s=0.01))
    stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True, n=3)
    texts = {0: "", 1: "", 2: ""}
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == {0: "ab0", 1: "ab1", 2: "ab2"}


async def test_an_error_in_the_middle_of_a_stream(client: AsyncOpenAI, stack: Stack) -> None:
    stack.say("Hel", "lo", finish=Finish(FinishReason.ERROR, message="out of pages"))
    stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
    with pytest.raises(openai.APIError, match="out of pages"):
        [chunk async for chunk in stream]


@pytest.mark.parametrize(
    ("finish", "status"),
    [
        (Finish(FinishReason.ERROR, message="out of pages"), 500),
        (Finish(FinishReason.POISON), 500),
        (Finish(FinishReason.DEADLINE), 408),
        (Finish(FinishReason.CANCEL), 499),
    ],
)
async def test_failed_requests_have_a_status(
    client: AsyncOpenAI, stack: Stack, finish: Finish, status: int
) -> None:
    stack.say("Hel", finish=finish)
    with pytest.raises(openai.APIStatusError) as caught:
        await client.chat.completions.create(model="tiny", messages=MESSAGES)
    assert caught.value.status_code == status


async def test_models(client: AsyncOpenAI) -> None:
    models = [model async for model in client.models.list()]
    assert [(model.id, model.object) for model in models] == [("tiny", "model")]
    assert (await client.models.retrieve("tiny")).id == "tiny"
    with pytest.raises(openai.NotFoundError) as caught:
        await client.models.retrieve("some/other")
    assert caught.value.code == "model_not_found"


async def test_the_sync_client(stack: Stack) -> None:
    running = await stack.start_frontend()

    def talk() -> tuple[str, str, str | None]:
        with OpenAI(base_url=f"{running.url}/v1", api_key="none", timeout=20) as client:
            whole = client.chat.completions.create(model="tiny", messages=MESSAGES)
            stream = client.completions.create(model="tiny", prompt="a", stream=True)
            text = "".join(chunk.choices[0].text for chunk in stream)
            return whole.choices[0].message.content or "", text, whole._request_id

    chat, completion, request_id = await asyncio.to_thread(talk)
    assert chat == completion == "Hello, world!"
    assert request_id in stack.backend.runs


async def test_a_408_is_tried_again_by_the_client(stack: Stack) -> None:
    finishes = [Finish(FinishReason.DEADLINE), Finish(FinishReason.STOP)]
    stack.answer(lambda request: Script(["x"], finishes.pop(0)))
    running = await stack.start_frontend()
    async with AsyncOpenAI(
        base_url=f"{running.url}/v1", api_key="none", max_retries=1, timeout=20
    ) as client:
        answer = await client.completions.create(model="tiny", prompt="a")
    assert answer.choices[0].text == "x"
    assert len(stack.backend.runs) == 2


async def test_a_stream_that_is_closed_ends_its_request(client: AsyncOpenAI, stack: Stack) -> None:
    stack.say("a", never_finish=True)
    stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
    async for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    await stream.close()
    (rid,) = stack.backend.runs
    await eventually(lambda: rid in stack.backend.cancelled)


async def test_what_is_not_openais_goes_through_extra_body(
    client: AsyncOpenAI, stack: Stack
) -> None:
    answer = await client.completions.create(
        model="tiny", prompt="ab", extra_body={"return_token_ids": True, "top_k": 3, "min_p": 0.1}
    )
    (run,) = stack.backend.runs.values()
    assert answer.choices[0].model_extra is not None
    assert answer.choices[0].model_extra["token_ids"] == run.token_ids
    assert (run.request.sampling.top_k, run.request.sampling.min_p) == (3, 0.1)
    with pytest.raises(openai.BadRequestError) as caught:
        await client.completions.create(model="tiny", prompt="ab", suffix="x")
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "suffix")
