"""Tools and reasoning in responses: one output, streamed, stored, and as the next turn reads it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import AsyncOpenAI

from frontend.jobs.job import Caller
from frontend.jobs.prompt_encoder import PromptEncoder
from frontend.jobs.stored_response import KeptResponse, ResponseView, StoredResponse
from frontend.models.model_directory import ModelDirectory
from frontend.surfaces.responses.conversation import conversation_of, messages_of
from frontend.surfaces.responses.events import ResponseEvents
from frontend.surfaces.responses.object import done_response
from frontend.surfaces.responses.request import ResponseRequests
from frontend.surfaces.tools.answer_styles import AnswerStyles
from frontend.text.text_stream import TextStream
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.reply import AnswerFormat
from shared.protocol.request import GenerateRequest
from shared.protocol.sampling import GrammarKind
from shared.protocol.sealed_replies import seal, unseal
from shared.protocol.text import Done, TextChunk
from shared.protocol.token_ids import pack_token_ids, unpack_token_ids
from tests.frontend import published_templates as published
from tests.frontend.conftest import RunningFrontend, Stack
from tests.frontend.directory import FakeCatalog, make_image_loader
from tests.frontend.fake_backend import Script
from tests.frontend.response_events import check_events, check_response, events_of, folded
from tests.frontend.surfaces.test_answer_parser import FORMATS, TEXTS
from tests.frontend.surfaces.test_tools import CHATML_TOOLS, STYLES, TEXT, pieces
from tests.frontend.tiny_model import make_bundle, make_card, make_tokenizer
from worker.engine.scripted.scripted_logprobs import scripted_logprobs

URL = "/v1/responses"
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "Of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}
NOW: dict[str, Any] = {"type": "function", "name": "now"}
BODY: dict[str, Any] = {"model": "tiny", "input": "Weather?", "tools": [WEATHER, NOW]}
RID = "3f0c" * 8


def directory(template: str = CHATML_TOOLS) -> ModelDirectory:
    bundle = make_bundle(template)
    return ModelDirectory(FakeCatalog(bundle, make_card(bundle, max_context_len=4096)))  # type: ignore[arg-type]


async def request_of(**fields: Any) -> tuple[GenerateRequest, StoredResponse]:
    """What is queued, and what is kept."""
    requests = ResponseRequests(
        directory(),
        PromptEncoder(),
        None,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        make_image_loader(),
        styles=AnswerStyles("hermes", "think"),
    )
    job = await requests.job({**BODY, **fields}, Caller())
    [(request, _)] = job.requests(
        RID,
        Caller(),
        created=0,
        subject="",
        frontend_id="f",
        max_logprob_bytes=9**9,
        cache_salt=job.sampling.cache_salt,
    )
    assert job.response is not None
    return request, StoredResponse.of(request, job.response.params, job.response.items)


async def test_gpt_oss_takes_functions_without_a_description() -> None:
    nothing: Any = None
    requests = ResponseRequests(
        directory(published.GPT_OSS), PromptEncoder(), nothing, nothing, make_image_loader()
    )
    job = await requests.job(BODY, Caller())
    assert job.answer is not None
    assert job.answer.tools == "gpt_oss"


async def view_of(answer: AnswerFormat | None, *, num_top: int | None = None) -> ResponseView:
    request, record = await request_of(tools=None)
    view = ResponseView(record, await directory().text(request.tokenizer_hash))
    return with_answer(view, answer, num_top)


def with_answer(
    view: ResponseView, answer: AnswerFormat | None, num_top: int | None
) -> ResponseView:
    reply = msgspec.structs.replace(view.record.reply, answer=answer, num_top=num_top)
    return ResponseView(msgspec.structs.replace(view.record, reply=reply), view.model_text)


@pytest.fixture(scope="module")
def plain_view() -> ResponseView:
    """Its model is loaded once for all examples."""
    return asyncio.run(view_of(None))


def streamed(view: ResponseView, done: Done, cuts: list[int]) -> list[dict[str, Any]]:
    """The events that a client sees when the detokenizer's chunks end at these tokens."""
    stream = TextStream(RID, view.record.reply, lambda _: None, keep_token_ids=True)
    events = ResponseEvents(view, stream)
    told = events.opening()
    tokenizer, token_ids = view.model_text.tokenizer, unpack_token_ids(done.token_ids)
    before, num_before, record_bytes = "", 0, len(done.logprobs) // max(1, len(token_ids))
    for cut in [*cuts, len(token_ids)]:
        is_last = cut == len(token_ids)
        text = done.text if is_last else tokenizer.decode(token_ids[:cut]).rstrip("\ufffd")
        chunk = TextChunk(
            RID,
            cut,
            len(before),
            text[len(before) :],
            token_ids[num_before:cut],
            done.finish if is_last else None,
            done.logprobs[num_before * record_bytes : cut * record_bytes],
        )
        stream.receive(chunk, 0.0)
        stream.take()
        told += events.more()
        before, num_before = text, cut
        if is_last:
            break
    return [json.loads(event.data) for event in told]


# Whole things in any order, beside the texts that only come close to them.
WHOLE = st.lists(
    st.sampled_from(
        [
            "<think>Hm.</think>",
            "Hi! ",
            " Bye.",
            '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>',
            '<tool_call>{"name": "now"}</tool_call>',
            "<tool_call><function=add><parameter=a>1</parameter></function></tool_call>",
            '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}]',
            '{"name": "add", "parameters": {"a": 1}}',
        ]
    ),
    max_size=5,
).map("".join)


@settings(max_examples=settings().max_examples // 2, deadline=None)
@given(
    answer=st.sampled_from([None, *FORMATS]),
    text=TEXTS | WHOLE,
    reason=st.sampled_from([FinishReason.STOP, FinishReason.LENGTH, FinishReason.CANCEL]),
    num_top=st.sampled_from([None, 0, 2]),
    data=st.data(),
)
def test_a_stream_folded_is_the_stored_object_and_the_conversation(
    plain_view: ResponseView,
    answer: AnswerFormat | None,
    text: str,
    reason: FinishReason,
    num_top: int | None,
    data: st.DataObject,
) -> None:
    """Whoever reads the result later parses its text anew: nothing of the stream is left."""
    view = with_answer(plain_view, answer, num_top)
    token_ids = view.model_text.tokenizer.encode(text, add_special_tokens=False).ids
    reply = seal(view.record.reply)
    logprobs = b"".join(
        scripted_logprobs(token_id, i, num_top) for i, token_id in enumerate(token_ids)
    )
    done = Done(RID, pack_token_ids(token_ids), text, Finish(reason), reply, logprobs)
    cuts = data.draw(st.lists(st.integers(0, len(token_ids)), max_size=4, unique=True).map(sorted))
    events = streamed(view, done, cuts)
    check_events(events)
    whole = events[-1]["response"]
    check_response(whole)
    assert folded(events) == whole == msgspec.to_builtins(done_response(view, done))
    assert streamed(view, done, []) == events
    said = [item for item in whole["output"] if item["type"] == "message"]
    assert len({item["id"] for item in whole["output"]}) == len(whole["output"])
    if answer is None:
        assert "".join(part["text"] for item in said for part in item["content"]) == text
    if reason is not FinishReason.CANCEL:
        items = conversation_of(KeptResponse(view.record, 1, done))
        kept = items[len(view.record.items) :]
        assert [strip(item) for item in kept] == [strip(item) for item in whole["output"]]


def strip(item: dict[str, Any]) -> dict[str, Any]:
    """Without logprobs, which no conversation has."""
    content = [{**part, "logprobs": []} for part in item.get("content", [])]
    return {**item, "content": content}


async def test_the_order_of_events() -> None:
    view = await view_of((await request_of())[1].reply.answer)
    token_ids = make_tokenizer().encode(TEXT, add_special_tokens=False).ids
    finish = Finish(FinishReason.STOP)
    done = Done(RID, pack_token_ids(token_ids), TEXT, finish, seal(view.record.reply))
    events = streamed(view, done, [])
    names = [event["type"].removeprefix("response.") for event in events]
    kinds = [name for i, name in enumerate(names) if i == 0 or name != names[i - 1]]
    message = ["content_part.added", "{}.delta", "{}.done", "content_part.done"]
    call = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done"]
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        *(name.format("reasoning_text") for name in message),
        "output_item.done",
        "output_item.added",
        *(name.format("output_text") for name in message),
        "output_item.done",
        *call,
        "output_item.done",
        *call,
        "output_item.done",
        "completed",
    ]
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
    ]
    assert output[0]["content"] == [{"type": "reasoning_text", "text": "Osló 🙂?"}]
    assert output[1]["content"][0]["text"] == "I look."
    assert (output[2]["name"], output[2]["arguments"]) == ("get_weather", '{"city": "Osló\\n🙂"}')
    assert {item["status"] for item in output} == {"completed"}


async def test_reasoning_tokens_end_with_the_closing_mark() -> None:
    """By the token of the mark where it is one, else by the pieces that spell it."""
    answer = (await request_of())[1].reply.answer
    assert answer is not None
    tokenizer = make_tokenizer()
    spelled = len(TEXT[: TEXT.index("</think>") + len("</think>")].encode())
    for end_id, expected in ((None, spelled), (tokenizer.token_to_id("O"), 9)):
        view = await view_of(msgspec.structs.replace(answer, reasoning_end_id=end_id))
        for text, num_reasoning in ((TEXT, expected), (TEXT[:11], 11), ("Hi", 0)):
            token_ids = tokenizer.encode(text, add_special_tokens=False).ids
            finish = Finish(FinishReason.STOP)
            done = Done(RID, pack_token_ids(token_ids), text, finish, seal(view.record.reply))
            usage = msgspec.to_builtins(done_response(view, done))["usage"]
            assert usage["output_tokens_details"] == {"reasoning_tokens": num_reasoning}, text
            assert streamed(view, done, [])[-1]["response"]["usage"] == usage


async def test_effort_reaches_a_template_that_knows_it() -> None:
    open_end, closed_end = "assistant\n<think>\n", "</think>\n\n"
    for effort, end in (("none", closed_end), ("low", open_end), (None, closed_end)):
        request, record = await request_of(reasoning={"effort": effort})
        assert prompt_of(request).endswith(end)
        assert record.params.reasoning == {"effort": effort, "summary": None}


async def test_a_call_that_was_cut_is_incomplete() -> None:
    view = await view_of((await request_of())[1].reply.answer)
    for end, status in (("</tool_call>\n<tool_call>", "completed"), ("Osló\\n", "incomplete")):
        text = TEXT[: TEXT.index(end) + len(end)]
        done = Done(RID, b"", text, Finish(FinishReason.LENGTH), seal(view.record.reply))
        response = msgspec.to_builtins(done_response(view, done))
        assert response["status"] == "incomplete"
        assert response["output"][-1]["type"] == "function_call"
        assert response["output"][-1]["status"] == status


async def test_a_conversation_is_one_assistant_turn_between_others() -> None:
    _, record = await request_of(
        input=[
            {"role": "user", "content": "Weather?"},
            {"type": "reasoning", "summary": [], "content": [REASONING]},
            {"role": "assistant", "content": "I look."},
            {**CALL, "id": "fc_1", "status": "completed"},
            {**CALL, "call_id": "b", "name": "now", "arguments": '{"cut": '},
            {"type": "function_call_output", "call_id": "a", "output": "rain"},
            {
                "type": "function_call_output",
                "call_id": "b",
                "output": [{"type": "input_text", "text": "noon"}],
            },
            {"role": "assistant", "content": "It rains."},
            {"role": "assistant", "content": "At noon."},
            {"role": "user", "content": "Thanks."},
        ]
    )
    assert messages_of(record.items, "Be kind.") == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Hm.",
            "tool_calls": [
                {
                    "id": "a",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": {"city": "Oslo"}},
                },
                {
                    "id": "b",
                    "type": "function",
                    "function": {"name": "now", "arguments": '{"cut": '},
                },
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "rain"},
        {"role": "tool", "tool_call_id": "b", "content": "noon"},
        {"role": "assistant", "content": "It rains."},
        {"role": "assistant", "content": "At noon."},
        {"role": "user", "content": "Thanks."},
    ]
    assert len({item["id"] for item in record.items}) == len(record.items)


async def test_tool_choice_decides_on_grammar_and_prompt() -> None:
    request, record = await request_of(tools=[NOW])
    assert request.sampling.grammar is None
    assert record.params.tools == [
        {**NOW, "description": None, "parameters": None, "strict": False}
    ]
    assert record.params.tool_choice == "auto"
    assert '"function": {"name": "now"}' in prompt_of(request)
    now = {"type": "function", "name": "now"}
    for fields in (
        {"tool_choice": "required"},
        {"tool_choice": now},
        {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [now]}},
        {"parallel_tool_calls": False},
        {},  # one of them is strict
    ):
        request, record = await request_of(**fields)
        assert request.sampling.grammar is not None
        assert request.sampling.grammar.kind is GrammarKind.LARK
        assert record.params.tool_choice == fields.get("tool_choice", "auto")
        assert "get_weather" in prompt_of(request)
    request, record = await request_of(tool_choice="none")
    assert "get_weather" not in prompt_of(request)
    assert record.params.tools[0] == WEATHER
    schema = {"type": "json_schema", "name": "x", "schema": {"type": "object"}}
    request, _ = await request_of(text={"format": schema})
    assert request.sampling.grammar is not None
    assert "content | " in request.sampling.grammar.text
    request, _ = await request_of(text={"format": schema}, tools=None)
    assert unseal(request.reply).answer is None


def prompt_of(request: GenerateRequest) -> str:
    text: str = make_tokenizer().decode(
        unpack_token_ids(request.prompt_ids), skip_special_tokens=False
    )
    return text


CALL = {
    "type": "function_call",
    "call_id": "a",
    "name": "get_weather",
    "arguments": '{"city": "Oslo"}',
}
REASONING = {"type": "reasoning_text", "text": "Hm."}


def sdk(frontend: RunningFrontend) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{frontend.url}/v1", api_key="none", max_retries=0, timeout=20)


def answers(request: GenerateRequest) -> str:
    """A call first; text for who brings results."""
    return "So it is." if "noon" in prompt_of(request) else TEXT


@pytest.mark.integration
@pytest.mark.parametrize("is_chained", [True, False])
async def test_openais_client_in_a_loop_of_calls(stack: Stack, is_chained: bool) -> None:
    """The turns go on at another frontend, by the id of the response or by its items."""
    stack.answer(lambda request: Script(pieces(answers(request))))
    first, second = await stack.start_frontend(**STYLES), await stack.start_frontend(**STYLES)
    body = {**BODY, "tools": [NOW]}  # the context is short
    async with sdk(first) as here, sdk(second) as there:
        made = await here.responses.create(**body)
        calls = [item for item in made.output if item.type == "function_call"]
        assert [json.loads(call.arguments) for call in calls] == [{"city": "Osló\n🙂"}, {}]
        results: list[Any] = [
            {"type": "function_call_output", "call_id": call.call_id, "output": "noon"}
            for call in calls
        ]
        if is_chained:
            final = await there.responses.create(
                **{**body, "input": results}, previous_response_id=made.id
            )
        else:
            said = [item.to_dict() for item in made.output]
            asked = {"role": "user", "content": BODY["input"]}
            final = await there.responses.create(**{**body, "input": [asked, *said, *results]})
        assert final.output_text == "So it is."
        [prompt] = [
            prompt_of(run.request) for run in stack.backend.runs.values() if run.text != TEXT
        ]
        assert '"arguments": {"city": "Osló\\n🙂"}' in prompt
        assert "I look." in prompt
        assert prompt.count("noon") == 2
        assert (await there.responses.retrieve(made.id)).to_dict() == made.to_dict()


@pytest.mark.integration
async def test_openais_client_streams_calls_and_goes_on_elsewhere(stack: Stack) -> None:
    stack.say(*pieces(TEXT))
    first = await stack.start_frontend(**STYLES)
    second = await stack.start_frontend()  # which need not know how the model writes
    async with sdk(first) as here, sdk(second) as there, second.client() as http:
        async with here.responses.stream(**BODY) as stream:
            seen = [event async for event in stream]
            final = await stream.get_final_response()
        snapshots = [e.snapshot for e in seen if e.type == "response.function_call_arguments.delta"]
        assert snapshots[-1] == "{}"
        assert '{"city": "Osló\\n🙂"}' in snapshots
        thoughts = [e.delta for e in seen if e.type == "response.reasoning_text.delta"]
        assert "".join(thoughts) == "Osló 🙂?"
        kept = (await there.responses.retrieve(final.id)).to_dict()["output"]
        assert kept == [without_parsed(item.to_dict()) for item in final.output]
        async with http.stream("GET", f"{URL}/{final.id}?stream=true") as response:
            events = await events_of(response)
        check_events(events)
        for number in (0, 3, len(events) // 2, len(events) - 2):
            rest = [
                event.to_dict()
                async for event in await there.responses.retrieve(
                    final.id, stream=True, starting_after=number
                )
            ]
            assert rest == events[number + 1 :]


def without_parsed(item: dict[str, Any]) -> dict[str, Any]:
    """What the client's stream adds to items."""
    known = {key: value for key, value in item.items() if key != "parsed_arguments"}
    if "content" in known:
        known["content"] = [
            {key: value for key, value in part.items() if key != "parsed"}
            for part in known["content"]
        ]
    return known


@pytest.mark.integration
async def test_a_background_call_is_read_while_it_is_written(stack: Stack) -> None:
    """One client leaves in the middle of the arguments; another frontend tells the rest."""
    half = TEXT.index("Osló\\n") + 2
    gate = asyncio.Event()
    stack.say(TEXT[:half], *pieces(TEXT[half:]), gate=gate)
    first, second = await stack.start_frontend(**STYLES), await stack.start_frontend()
    async with sdk(first) as here, sdk(second) as there:
        seen = []
        stream = await here.responses.create(**BODY, background=True, stream=True)
        async for event in stream:
            seen.append(event.to_dict())
            if event.type == "response.function_call_arguments.delta":
                break
        await stream.close()
        gate.set()
        number = seen[-1]["sequence_number"]
        rest = [
            event.to_dict()
            async for event in await there.responses.retrieve(
                seen[0]["response"]["id"], stream=True, starting_after=number
            )
        ]
    events: list[Any] = [*seen, *rest]
    check_events(events)
    whole = events[-1]["response"]
    assert folded(events) == whole
    assert whole["output"][2]["arguments"] == '{"city": "Osló\\n🙂"}'
