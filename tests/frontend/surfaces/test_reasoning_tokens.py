"""`usage.completion_tokens_details.reasoning_tokens`: by the token that closes the reasoning."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tokenizers import AddedToken

from frontend.jobs.job import Caller
from frontend.models.model_directory import ModelDirectory
from frontend.surfaces.chat.chat_events import ChatEvents
from frontend.text.text_stream import TextStream
from shared.checkpoint.tokenizer_bundle import TokenizerBundle
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.reply import AnswerFormat, ReplyParams, Surface
from shared.protocol.sealed_replies import unseal
from shared.protocol.text import TextChunk
from tests.frontend.conftest import Stack
from tests.frontend.directory import AllRequests, FakeCatalog
from tests.frontend.sse import sse_events
from tests.frontend.surfaces.test_tools import BODY, CHATML_TOOLS, request_of
from tests.frontend.tiny_model import make_bundle, make_card, make_tokenizer, register

BEGIN, END = 259, 260
THINK = AnswerFormat(reasoning="think", reasoning_end_id=END)
INSIDE = msgspec.structs.replace(THINK, begins_in_reasoning=True)
IN_PIECES = msgspec.structs.replace(THINK, reasoning_end_id=None)


def thinking_bundle() -> TokenizerBundle:
    tokenizer = make_tokenizer()
    tokenizer.add_tokens([AddedToken(mark, special=True) for mark in ("<think>", "</think>")])
    files = dict(make_bundle(CHATML_TOOLS).files, **{"tokenizer.json": tokenizer.to_str().encode()})
    return TokenizerBundle(files)


def usage_after(answer: AnswerFormat, *pieces: tuple[str, list[int]]) -> dict[str, Any]:
    """Of a whole answer that came in these pieces."""
    reply = ReplyParams("out", Surface.CHAT, "tiny", 1, 7, "group", answer=answer)
    stream = TextStream("rid", reply, lambda _: None, keep_token_ids=True)
    for text, ids in pieces:
        stream.receive(
            TextChunk("rid", stream.position + len(ids), stream.have, text, ids, None), 0.0
        )
    finish = Finish(FinishReason.STOP)
    stream.receive(TextChunk("rid", stream.position, stream.have, "", [], finish), 0.0)
    usage: dict[str, Any] = msgspec.json.decode(ChatEvents([stream], None).whole([stream.take()]))[
        "usage"
    ]
    return usage


@pytest.mark.parametrize(
    ("answer", "pieces", "expected"),
    [
        (THINK, [("<think>", [BEGIN]), ("a b", [1, 2, 3]), ("</think>", [END]), ("c", [4])], 5),
        (INSIDE, [("a", [1]), ("</think>\n\n", [END, 2]), ("<think>", [BEGIN])], 2),
        (INSIDE, [("ab</thi", [1, 2, 3, 4])], 4),
        (THINK, [("no thought", [1, 2])], 0),
        (THINK, [], 0),
        (THINK, [("<think>a</think>b", [BEGIN, 1, 2, 3, 4])], None),  # spelled, not the token
        (IN_PIECES, [("<think>a</think>b", [1, 2, 3])], None),
        (IN_PIECES, [("<think>a", [1, 2, 3])], 3),
    ],
)
def test_all_tokens_up_to_the_mark_count(
    answer: AnswerFormat, pieces: list[tuple[str, list[int]]], expected: int | None
) -> None:
    usage = usage_after(answer, *pieces)
    told = None if expected is None else {"reasoning_tokens": expected}
    assert usage.get("completion_tokens_details") == told
    assert usage["completion_tokens"] == sum(len(ids) for _, ids in pieces)


async def test_the_mark_is_looked_up_in_the_vocabulary() -> None:
    bundle = thinking_bundle()
    catalog = FakeCatalog(bundle, make_card(bundle))
    requests = AllRequests(ModelDirectory(catalog))  # type: ignore[arg-type]
    job = await requests.chat.job(BODY, Caller())
    assert job.answer is not None
    assert job.answer.reasoning_end_id == END
    spelled = await request_of(tools=None)
    answer = unseal(spelled.reply).answer
    assert answer is not None
    assert answer.reasoning_end_id is None


@pytest.mark.integration
async def test_streams_wholes_and_resumed_streams_count_alike(stack: Stack) -> None:
    bundle = thinking_bundle()
    await register(stack.cluster, bundle, make_card(bundle))
    stack.say(
        "<think>", "hm", "</think>", "yes", "!",
        piece_ids=[[BEGIN], [72, 73], [END], [74, 75, 76], [77]],
    )  # fmt: skip
    first, second = await stack.start_frontend(), await stack.start_frontend()
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    async with first.client() as http, second.client() as other:
        async with http.stream("POST", "/v1/chat/completions", json=body) as response:
            rid = response.headers["x-request-id"]
            events = [event async for event in sse_events(response)][:-1]
        last = events[-1].json["usage"]
        assert last["completion_tokens_details"] == {"reasoning_tokens": 4}
        assert last["completion_tokens"] == 8
        counts = [
            event.json["usage"]["completion_tokens_details"]["reasoning_tokens"] for event in events
        ]
        assert counts == sorted(counts)
        whole = (await other.get(f"/v1/streams/{rid}?stream=false")).json()
        assert whole["usage"] == last
        headers = {"Last-Event-ID": events[-4].event_id}
        async with other.stream("GET", f"/v1/streams/{rid}", headers=headers) as response:
            rest = [event async for event in sse_events(response)][:-1]
        assert rest[-1].json["usage"] == last
