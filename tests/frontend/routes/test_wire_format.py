"""The bytes that clients read, in full."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from frontend.routes.answer_response import sse
from frontend.surfaces.chat.chat_events import ChatEvents
from frontend.surfaces.completions.completion_events import CompletionEvents
from frontend.surfaces.event_feed import Event
from frontend.surfaces.generate.generate_events import GenerateEvents
from frontend.text.text_stream import TextStream
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.reply import Surface
from shared.protocol.text import TextChunk
from tests.frontend.text.test_text_stream import make_reply

RID = "0" * 32


def make_streams(
    surface: Surface, num: int = 1, *, finished: bool = True, **changes: object
) -> Sequence[TextStream]:
    streams = []
    for i in range(num):
        reply = make_reply(
            surface=surface, choice_idx=i, num_choices=num, created=17, model='m"1', **changes
        )
        stream = TextStream(RID, reply, lambda stream: None, keep_token_ids=True)
        finish = Finish(FinishReason.STOP, matched="END", num_cached_tokens=2)
        stream.receive(TextChunk(RID, 2, 0, "hé", [5, 6], finish if finished else None), 0)
        streams.append(stream)
    return streams


def test_chat_events() -> None:
    streams = make_streams(Surface.CHAT)
    events = ChatEvents(streams, None)
    head = (
        f'{{"id":"chatcmpl-{RID}","object":"chat.completion.chunk","created":17,'
        '"model":"m\\"1","system_fingerprint":null,"choices":['
    )
    assert events.opening() == [
        (
            head + '{"index":0,"delta":{"role":"assistant","content":""},'
            '"logprobs":null,"finish_reason":null}]}'
        ).encode()
    ]
    assert (
        events.text(streams[0], 'a"\n🙂').decode()
        == head
        + '{"index":0,"delta":{"content":"a\\"\\n🙂"},"logprobs":null,"finish_reason":null}]}'
    )
    assert (
        events.finish(streams[0]).decode()
        == head
        + '{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop",'
        '"stop_reason":"END","matched_stop":"END"}]}'
    )
    assert events.closing() == []


def test_chat_events_with_usage() -> None:
    streams = make_streams(Surface.CHAT, 2, include_usage=True)
    events = ChatEvents(streams, None)
    for data in (*events.opening(), events.text(streams[1], "x"), events.finish(streams[0])):
        assert json.loads(data)["usage"] is None
    (closing,) = events.closing()
    assert json.loads(closing)["choices"] == []
    assert json.loads(closing)["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    assert json.loads(events.text(streams[1], "x"))["choices"][0]["index"] == 1


def test_completion_events() -> None:
    streams = make_streams(Surface.COMPLETIONS, echo="> ")
    events = CompletionEvents(streams, None)
    assert [json.loads(data)["choices"][0]["text"] for data in events.opening()] == ["> "]
    assert json.loads(events.text(streams[0], "x")) == {
        "id": f"cmpl-{RID}",
        "object": "text_completion",
        "created": 17,
        "model": 'm"1',
        "system_fingerprint": None,
        "choices": [{"index": 0, "text": "x", "logprobs": None, "finish_reason": None}],
    }
    finish = json.loads(events.finish(streams[0]))["choices"][0]
    assert (finish["text"], finish["finish_reason"]) == ("", "stop")
    assert (finish["stop_reason"], finish["matched_stop"]) == ("END", "END")
    whole = json.loads(events.whole(["hé"]))["choices"][0]
    assert (whole["text"], whole["stop_reason"], whole["matched_stop"]) == ("> hé", "END", "END")


@pytest.mark.parametrize(
    ("eos_ids", "matched", "stop_reason"),
    [(None, 2, None), ((2,), 2, None), ((2,), 7, 7), ((), 2, 2), (None, "END", "END")],
)
def test_end_of_turn_is_no_stop_reason(
    eos_ids: tuple[int, ...] | None, matched: int | str, stop_reason: int | str | None
) -> None:
    (stream,) = make_streams(Surface.CHAT, finished=False, eos_token_ids=eos_ids)
    stream.receive(TextChunk(RID, 2, 2, "", [], Finish(FinishReason.STOP, matched)), 0)
    whole = json.loads(ChatEvents([stream], None).whole(["hé"]))["choices"][0]
    assert (whole["stop_reason"], whole["matched_stop"]) == (stop_reason, matched)


def test_usage_of_several_prompts_counts_each_once() -> None:
    streams = make_streams(Surface.COMPLETIONS, 6, num_prompts=3)
    usage = json.loads(CompletionEvents(streams, None).whole(["x"] * 6))["usage"]
    assert usage["prompt_tokens"] == 3 * 3
    assert usage["completion_tokens"] == 6 * 2
    assert usage["prompt_tokens_details"]["cached_tokens"] == 3 * 2


def test_generate_events_are_pieces() -> None:
    (stream,) = make_streams(Surface.GENERATE, finished=False)
    events = GenerateEvents([stream], None)
    first = json.loads(events.text(stream, stream.take()))
    assert (first["text"], first["output_ids"]) == ("hé", [5, 6])
    assert first["meta_info"] == {
        "id": RID,
        "finish_reason": None,
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "cached_tokens": 0,
    }
    finish = Finish(FinishReason.LENGTH, num_cached_tokens=1)
    stream.receive(TextChunk(RID, 3, 2, "", [7], finish), 0)
    last = json.loads(events.finish(stream))
    assert (last["text"], last["output_ids"]) == ("", [7])
    assert last["meta_info"]["finish_reason"] == {"type": "length", "length": 3}
    assert json.loads(events.whole(["hé"]))["output_ids"] == [5, 6, 7]


def test_generate_of_several_is_a_list() -> None:
    whole = json.loads(GenerateEvents(make_streams(Surface.GENERATE, 2), None).whole(["a", "b"]))
    assert [(item["index"], item["text"]) for item in whole] == [(0, "a"), (1, "b")]
    assert whole[0]["meta_info"]["finish_reason"] == {"type": "stop", "matched": "END"}


def test_sse_framing() -> None:
    events = [Event(b"a.1.1.00", b'{"x":1}'), Event(b"a.2.2.00", b'{"x":2}')]
    assert sse(events[:1]) == b'id: a.1.1.00\ndata: {"x":1}\n\n'
    assert sse(events) == b'id: a.1.1.00\ndata: {"x":1}\n\nid: a.2.2.00\ndata: {"x":2}\n\n'


def test_the_closing_event_leaves_the_id_of_the_one_before_it() -> None:
    finish, usage = Event(b"g.1", b"{}"), Event(b"g.1", b"[]", repeats_id=True)
    assert sse([finish, usage]) == b"id: g.1\ndata: {}\n\ndata: []\n\n"
