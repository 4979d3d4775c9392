"""Bodies that are made to be too much for what is stored of them: refused, and never a 500."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from frontend.jobs.job import MAX_RENDERING_BYTES, Caller
from shared.errors import InvalidRequest, RequestTooLarge
from shared.nats_client.connection import MIN_MAX_PAYLOAD
from shared.protocol.codec import encode
from shared.protocol.logprobs import max_logprob_bytes
from shared.protocol.reply import SealedReply
from shared.protocol.text import ReplayReply, ReplayStatus, TextChunk
from tests.frontend.conftest import Stack
from tests.frontend.directory import AllRequests, make_directory
from tests.frontend.published_templates import QWEN_3_CODER
from tests.frontend.surfaces.test_tools import CHATML_TOOLS
from tests.frontend.tiny_model import make_bundle, make_card, register

MANY = {f"p{i}": {"type": "integer"} for i in range(5000)}
LONG = {"p" * 100_000: {"type": "integer"}}


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


PARAMETERS: dict[str, Any] = {
    "many fields": {"type": "object", "properties": MANY},
    "a long name": {"type": "object", "properties": LONG},
    "deep": {"type": "object", "x": nested(600)},
    "many lists": {"type": "object", "x": [[]] * 60_000},
}


def function(parameters: Any) -> dict[str, Any]:
    return {"name": "f", "parameters": parameters}


@pytest.mark.parametrize("properties", [MANY, LONG])
async def test_what_travels_with_every_record_of_a_request_is_bounded(
    properties: dict[str, Any],
) -> None:
    tools = [{"type": "function", "function": function({"properties": properties})}]
    directory = make_directory(chat_template=QWEN_3_CODER, max_context_len=400_000)
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "tools": tools}
    with pytest.raises(InvalidRequest, match="'tools' have") as caught:
        await AllRequests(directory).chat.job(body, Caller())
    assert caught.value.param == "tools"


async def test_what_an_answer_repeats_is_bounded_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frontend.jobs.job.MAX_RENDERING_BYTES", 1000)
    body = {"model": "tiny", "prompt": "x" * 400, "echo": True, "max_tokens": 5}
    jobs = AllRequests(make_directory()).completions

    async def ask(prompt: str) -> None:
        job = await jobs.job({**body, "prompt": prompt}, Caller())
        job.requests(
            "0" * 32, Caller(), created=0, subject="x", frontend_id="f", max_logprob_bytes=1 << 20,
            cache_salt="",
        )  # fmt: skip

    await ask("x" * 400)
    monkeypatch.setattr("frontend.jobs.job.MAX_RENDERING_BYTES", 300)
    with pytest.raises(RequestTooLarge, match="at most 300"):
        await ask("x" * 400)


def test_a_replay_has_room_for_it_beside_the_most_logprobs() -> None:
    reply = SealedReply("jf.out.f", "m", 0, 1, "0" * 32, rendering=bytes(MAX_RENDERING_BYTES))
    chunk = TextChunk(
        "0" * 32, 1, 0, "", [7], prompt_logprobs=bytes(max_logprob_bytes(MIN_MAX_PAYLOAD))
    )
    whole = encode(ReplayReply(ReplayStatus.RUNNING, reply, chunk, has_more=True))
    assert len(whole) < MIN_MAX_PAYLOAD - 16 * 1024


@pytest.mark.integration
@pytest.mark.parametrize(
    ("template", "kind"),
    [
        *((CHATML_TOOLS, kind) for kind in ("a long name", "deep", "many lists")),
        *((QWEN_3_CODER, kind) for kind in ("many fields", "deep")),
        *(
            pytest.param(template, kind, marks=pytest.mark.nightly)
            for template, kind in (
                (CHATML_TOOLS, "many fields"),
                (QWEN_3_CODER, "a long name"),
                (QWEN_3_CODER, "many lists"),
            )
        ),
    ],
)
async def test_hostile_tools_are_refused_or_answered(
    stack: Stack, template: str, kind: str
) -> None:
    bundle = make_bundle(template)
    await register(stack.cluster, bundle, make_card(bundle, "tiny", max_context_len=1 << 20))
    running = await stack.start_frontend()
    flat = {"type": "function", **function(PARAMETERS[kind])}
    tools = [{"type": "function", "function": function(PARAMETERS[kind])}]
    own = {"name": "f", "input_schema": PARAMETERS[kind]}
    message = {"role": "user", "content": "Hi"}
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", {"messages": [message], "tools": tools}),
        ("/v1/chat/completions/batch", {"messages": [[message]], "tools": tools}),
        ("/v1/responses", {"input": "Hi", "tools": [flat]}),
        ("/v1/messages", {"messages": [message], "max_tokens": 5, "tools": [own]}),
        ("/api/chat", {"messages": [message], "stream": False, "tools": tools}),
        ("/apply-template", {"messages": [message], "tools": tools}),
        ("/tokenize", {"messages": [message], "tools": tools}),
    ]
    async with running.client() as http:
        for path, body in bodies:
            answer = await http.post(path, json={"model": "tiny", **body})
            assert answer.status_code in (200, 400, 413), (path, answer.status_code, answer.text)
            if path == "/v1/responses" and answer.status_code == 200:
                assert await reads_again(http, answer.json()["id"])


async def reads_again(http: httpx.AsyncClient, response_id: str) -> bool:
    return (await http.get(f"/v1/responses/{response_id}")).status_code == 200
