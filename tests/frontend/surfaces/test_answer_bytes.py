"""The bytes of the answers that are not OpenAI's chats and completions, key by key.

They stand in `answer_bytes.txt`: a line for each answer or event, under the name of its case.
`python -m tests.frontend.surfaces.test_answer_bytes` writes it anew.
"""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from frontend.cluster.cluster_history import ClusterHistory
from frontend.cluster.request_paths import Hop, Left
from frontend.cluster.view import Sight, Viewer, cluster_view
from frontend.inference.telemetry.recent_requests import RecentRequest
from frontend.jobs.job import Caller
from frontend.jobs.stored_response import ResponseView
from frontend.models.model_directory import NamedModel
from frontend.streams.generation import Generation
from frontend.surfaces.anthropic.message_answer import message_error_body
from frontend.surfaces.anthropic.message_events import MessageEvents
from frontend.surfaces.embeddings.embedding_events import OllamaEmbedEvents
from frontend.surfaces.ollama.answer_events import OllamaEvents
from frontend.surfaces.ollama.model_views import running, shown, tags
from frontend.surfaces.ollama.ollama_answer import ollama_error_body
from frontend.surfaces.responses.events import ResponseEvents
from frontend.surfaces.responses.input_items import input_items
from frontend.surfaces.responses.object import done_response, unfinished_response
from frontend.text.event_writer import encode_json, error_body
from frontend.text.text_stream import TextStream
from shared.catalog.model_status import PoolHeartbeats
from shared.errors import InternalError, InvalidRequest, RateLimited
from shared.protocol.finish import Finish, FinishReason, RunFacts
from shared.protocol.model_cards import AdapterCard, EmbeddingCard
from shared.protocol.reply import AnswerFormat, Surface
from shared.protocol.role_cards import (
    SUPERVISOR,
    GpuCard,
    RoleCard,
    ScaleEvent,
    WorkDone,
    WorkerCard,
    WorkerEvent,
    WorkerState,
)
from shared.protocol.text import Done, TextChunk
from shared.protocol.token_ids import pack_token_ids
from shared.snapshot.cluster_snapshot import ClusterSnapshot, QueueDepth
from tests.frontend.directory import make_directory
from tests.frontend.seeing_model import data_url
from tests.frontend.surfaces.test_answer_parser import HERMES, QWEN3
from tests.frontend.surfaces.test_response_tools import view_of
from tests.frontend.surfaces.test_tools import TEXT, pieces
from tests.frontend.text.test_text_stream import make_reply
from tests.frontend.tiny_model import make_bundle, make_card, make_tokenizer
from worker.engine.scripted.scripted_logprobs import scripted_logprobs

GOLDEN = Path(__file__).with_name("answer_bytes.txt")
RID = "0" * 32
NOW = re.compile(rb'(?<="created_at":")[^"]+')
ITEM_ID = re.compile(rb'(?<="id":")(msg|rs|fc|fco)_(?!3f0c)[0-9a-f]{32}')
RUN = RunFacts(("w",), 0.5, 0.25, 1.5)
STOP = Finish(FinishReason.STOP, num_cached_tokens=2, run=RUN)
CUT = Finish(FinishReason.LENGTH, num_cached_tokens=1, run=RUN)
MATCHED = Finish(FinishReason.STOP, matched="END")
THINKING = msgspec.structs.replace(QWEN3, tools=HERMES.tools, reasoning_end_id=7)
ITEMS: list[dict[str, Any]] = [
    {
        "role": "user",
        "content": ["Hi", {"type": "input_image", "image_url": data_url(b"x")}],
    },
    {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
    {"type": "function_call", "call_id": "c", "name": "now", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "12"},
    {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "Hm"}],
        "content": [{"type": "reasoning_text", "text": "Hm."}],
    },
]


def generation_of(
    surface: Surface, finish: Finish, answer: AnswerFormat | None = None, **changes: Any
) -> Generation:
    reply = make_reply(
        surface=surface, created=17, model='m"1', group_id=RID, answer=answer, **changes
    )
    return Generation.of(
        [(RID, reply)],
        Caller(),
        pool="p",
        arrived_at=0.0,
        remaining_s=60.0,
        queue_timeout_s=0.0,
        token_texts=None,
    )


def receive(stream: TextStream, text: str, finish: Finish) -> None:
    ids = [*range(len(text) - 1), 7]
    stream.receive(TextChunk(RID, len(ids), 0, text, ids, finish), 0)


def told(writer: Any, text: str) -> list[bytes]:
    """A stream of pieces; the name of each event stands before it."""
    events = writer.opening()
    for piece in pieces(text, 20):
        events += writer.text(piece)
    return [event.name + b" " + event.data for event in [*events, *writer.finish()]]


async def messages() -> list[bytes]:
    lines = []
    for answer, text, finish in (
        (None, "Hi\n🙂", MATCHED),
        (None, "", CUT),
        (THINKING, TEXT, STOP),
        (THINKING, TEXT[:-20], CUT),
    ):
        generation = generation_of(Surface.MESSAGES, finish, answer)
        stream = generation.streams[0]
        receive(stream, text, finish)
        lines += told(MessageEvents(stream), text)
        lines.append(MessageEvents(stream).whole(text))
    lines.append(MessageEvents(stream).error(InternalError("oh")).data)
    lines.append(message_error_body(InvalidRequest("'x' is wrong", param="x")))
    return lines


async def ollama() -> list[bytes]:
    lines = []
    for surface in (Surface.OLLAMA_CHAT, Surface.OLLAMA_GENERATE):
        for answer, text, finish in (
            (None, "Hi\n🙂", MATCHED),
            (THINKING, TEXT, STOP),
            (THINKING, TEXT[:-20], CUT),
        ):
            generation = generation_of(surface, finish, answer)
            generation.is_resumed = True  # whose durations are its worker's
            receive(generation.streams[0], text, finish)
            lines += told(OllamaEvents(generation), text)
            lines.append(OllamaEvents(generation).whole(text))
    lines.append(ollama_error_body(InvalidRequest("'x' is wrong", param="x")))
    embedded = Finish(FinishReason.STOP, embedding=struct.pack("<2f", 0.25, 0.5), run=RUN)
    generation = generation_of(Surface.OLLAMA_EMBED, embedded)
    generation.is_resumed = True
    receive(generation.streams[0], "", embedded)
    lines.append(OllamaEmbedEvents(generation).whole([""]))
    return lines


async def ollama_models() -> list[bytes]:
    adapter = AdapterCard("fine", "r2", 8, 18)
    directory = make_directory("tiny", created=17, default_top_k=3, adapters=(adapter,))
    model = await directory.model("tiny")
    card = msgspec.structs.replace(model.card, revision="r")
    named = [NamedModel(card), NamedModel(card, adapter)]
    embeds = make_directory("other", created=17, embedding=EmbeddingCard(num_dimensions=8))
    lists = [encode_json(tags(named)), encode_json(running(named)), encode_json(running([]))]
    other = await embeds.model("other")
    return [*lists, encode_json(shown(model)), encode_json(shown(other))]


def seen() -> Sight:
    busy = WorkerCard(
        "worker-1",
        "p",
        "tiny",
        "r",
        WorkerState.READY,
        num_running=3,
        max_running=4,
        kv_cache_usage=0.123456,
        host="h",
        pid=7,
        started_at=1.23456,
        work=WorkDone(num_released=2, num_redelivered=5, num_prefix_queries=10, num_prefix_hits=4),
        gpu=GpuCard("NVIDIA H100", "bfloat16", "bfloat16", "triton", total_bytes=80, free_bytes=9),
        remark="runs without CUDA graphs",
    )
    loading = WorkerCard(
        "worker-2", "p", "tiny", "r", WorkerState.LOADING, phase="weights", progress=0.51234
    )
    scaled = ScaleEvent(1.5, "p", "tiny", "s", 1, 2, "queue", 1.5, 1, 2, 3, 4, 5, 0.5, 0.25, 0.0)
    card = make_card(
        make_bundle(), revision="r", created=17, adapters=(AdapterCard("fine", "r2", 8, 18),)
    )
    request = RecentRequest(
        "g" * 32, ("a", "b"), "me", "team", "tiny", "chat", 12.3456, 200, "stop", 3, 2, 7, 0.1, 0.25
    )
    running_one = RecentRequest(
        "h" * 32, ("c",), "you", "", "tiny", "chat", 12.5, None, "", 3, 0, 0, None, None
    )
    snapshot = ClusterSnapshot(
        at=99.12345,
        models=[],
        heartbeats=PoolHeartbeats({}, {}),
        workers=[busy, loading],
        tokens_per_s={"worker-1": 12.345},
        step_age_s={},
        queues=[QueueDepth("tiny", "interactive", 1, 2, 0.5), QueueDepth("tiny", "batch", 0, 0)],
        roles=[
            RoleCard("f1", "frontend", host="h", pid=8, started_at=1.0),
            RoleCard("d1", "detok", num_fenced=6),
            RoleCard("s1", SUPERVISOR, pool="p", failure="no GPU"),
        ],
        events={
            4: WorkerEvent(1.0, "p", "tiny", "worker-2", "gone", host="h", detail="killed"),
            5: WorkerEvent(1.25, "p", "tiny", "worker-2", "loading"),
            6: scaled,
        },
        num_dead=1,
    )
    hops = [Hop("worker-1", 4, 1.23456, Left.DIED), Hop("worker-2", 9, 2.0)]
    figures = ClusterHistory().note(snapshot)
    return Sight(snapshot, figures, [card], [request, running_one], {"a": hops})


async def cluster() -> list[bytes]:
    head = {"version": "1", "frontend": "f1"}
    return [
        encode_json(cluster_view(seen(), viewer, {**head, **more}))
        for viewer in (Viewer("me", False), Viewer("me", True))
        for more in ({}, {"admin_url": "http://a"})
    ]


async def responses() -> list[bytes]:
    lines = [encode_json(item) for item in input_items(ITEMS)]
    for answer, text, finish, num_top in (
        (None, "Hi\n🙂", MATCHED, None),
        (THINKING, TEXT, STOP, 1),
        (THINKING, TEXT[:-20], CUT, None),
        (None, "Hi", Finish(FinishReason.ERROR, message="oh"), None),
        (None, "Hi", Finish(FinishReason.CANCEL), None),
    ):
        view = await view_of(answer, num_top=num_top)
        lines.append(encode_json(unfinished_response(view.record, "queued")))
        lines += response_events(view, text, finish, num_top)
    return lines


def response_events(
    view: ResponseView, text: str, finish: Finish, num_top: int | None
) -> Iterable[bytes]:
    token_ids = make_tokenizer().encode(text, add_special_tokens=False).ids
    logprobs = b"".join(
        scripted_logprobs(token_id, i, num_top) for i, token_id in enumerate(token_ids)
    )
    stream = TextStream(view.record.rid, view.record.reply, lambda _: None, keep_token_ids=True)
    events = ResponseEvents(view, stream)
    opening = events.opening()
    yield encode_json(events.response())
    chunk = TextChunk(view.record.rid, len(token_ids), 0, text, token_ids, finish, logprobs)
    stream.receive(chunk, 0.0)
    name = b""
    for event in [*opening, *events.more()]:
        if event.name != name:  # the first of many pieces is like the others
            yield b"%d %b %b" % (event.number, event.name, event.data)
        name = event.name
    done = Done(view.record.rid, pack_token_ids(token_ids), text, finish, None, logprobs)
    yield encode_json(done_response(view, done))


async def errors() -> list[bytes]:
    return [
        error_body(InvalidRequest("'x' is wrong", param="x")),
        error_body(RateLimited("slow down", 3, kind="tokens", headers={})),
    ]


CASES: Mapping[str, Callable[[], Awaitable[list[bytes]]]] = {
    "messages": messages,
    "ollama": ollama,
    "ollama models": ollama_models,
    "cluster": cluster,
    "responses": responses,
    "errors": errors,
}


async def lines_of(name: str) -> list[str]:
    made = [ITEM_ID.sub(rb"\1_id", NOW.sub(b"then", line)) for line in await CASES[name]()]
    return [line.decode() for line in made]


def golden() -> dict[str, list[str]]:
    sections = GOLDEN.read_text().split("# ")[1:]
    return {name: lines for name, *lines in (section.splitlines() for section in sections)}


@pytest.mark.parametrize("name", CASES)
async def test_the_bytes_are_those_that_clients_read(name: str) -> None:
    assert await lines_of(name) == golden()[name]


async def write_golden() -> None:
    lines = [line for name in CASES for line in (f"# {name}", *await lines_of(name))]
    GOLDEN.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    asyncio.run(write_golden())
