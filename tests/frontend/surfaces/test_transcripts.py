"""Transcripts: forms to requests, and tokens to what OpenAI's clients read."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import numpy as np
import pytest
from openai import AsyncOpenAI

from shared.protocol.codec import decode, encode
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.hearing_card import HearingCard
from shared.protocol.prompt_object import prompt_data
from shared.protocol.request import GenerateRequest
from shared.protocol.token_ids import unpack_token_ids
from tests.eventually import eventually
from tests.frontend.conftest import RunningFrontend, Stack
from tests.frontend.fake_backend import Script
from tests.frontend.nats.test_nats_service import ask
from tests.frontend.tiny_model import make_tokenizer
from tests.tiny_whisper import sound, wav_file

pytestmark = pytest.mark.integration

END, START, PREVIOUS, EN, DE, TRANSCRIBE, TRANSLATE, PLAIN, ZERO = range(300, 309)
CARD = HearingCard(
    num_mel_bins=16,
    start_id=START,
    end_id=END,
    no_timestamps_id=PLAIN,
    timestamp_id=ZERO,
    max_context_len=64,
    previous_id=PREVIOUS,
    languages={"en": EN, "de": DE},
    transcribe_id=TRANSCRIBE,
    translate_id=TRANSLATE,
)
WAV = wav_file(sound(41.0))
URL = "/v1/audio/transcriptions"


def text(words: str) -> list[int]:
    return list(make_tokenizer().encode(words, add_special_tokens=False).ids)


def at(seconds: float) -> int:
    return ZERO + round(seconds * 50)


# What its language is, then three windows: the end of the first is heard again by the second.
SAID = [
    *(DE, at(0), *text(" Hallo"), at(2), at(2), *text(" du"), at(4), at(4), *text(" da"), END),
    *(at(0), *text(" dé"), END),
    *(at(0.5), *text(" am Ende"), at(6), at(7), *text("."), at(7), END),
]
TEXT = "Hallo du dé am Ende."


async def start(stack: Stack) -> RunningFrontend:
    fields = {"hearing": CARD, "can_generate": False, "embedding": None}
    changed = msgspec.structs.replace(stack.card, **fields)
    bucket = stack.cluster.bucket(stack.cluster.subjects.models_bucket)
    await bucket.put(changed.pool, encode(changed))
    stack.answer(_said)
    return await stack.start_frontend()


def _said(request: GenerateRequest) -> Script:
    detects = not {EN, DE} & set(unpack_token_ids(request.prompt_ids))
    ids = SAID if detects else SAID[1:]
    pieces = [[each] for each in ids]
    return Script(["x"] * len(ids), Finish(FinishReason.STOP), piece_ids=pieces)


def asked(stack: Stack) -> GenerateRequest:
    return list(stack.backend.runs.values())[-1].request


async def post(running: RunningFrontend, path: str = URL, data: bytes = WAV, **fields: Any) -> Any:
    async with running.client() as client:
        form = {"model": "tiny", **fields}
        return await client.post(path, data=form, files={"file": ("a.wav", data)})


async def test_a_file_is_heard_and_told_in_all_formats(stack: Stack) -> None:
    running = await start(stack)
    answer = await post(running)
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"text": TEXT, "usage": {"type": "duration", "seconds": 41.0}}
    request = asked(stack)
    assert request.audio is not None
    assert request.audio.num_frames == 4100
    assert unpack_token_ids(request.prompt_ids) == [START, TRANSCRIBE]
    assert request.sampling.temperature == 0.0
    assert (request.sampling.max_tokens, request.level) == (2 * 64 * 3, 4)
    said = (await post(running, response_format="verbose_json")).json()
    assert (said["text"], said["language"], said["task"]) == (TEXT, "de", "transcribe")
    assert [(each["start"], each["end"], each["text"]) for each in said["segments"]] == [
        (0.0, 2.0, " Hallo"),
        (2.0, 4.0, " du"),
        (4.0, 34.0, " dé"),
        (34.5, 40.0, " am Ende"),
        (41.0, 41.0, "."),
    ]
    assert said["segments"][3] | {"tokens": []} == {
        "id": 3,
        "seek": 3400,
        "start": 34.5,
        "end": 40.0,
        "text": " am Ende",
        "tokens": [],
        "temperature": 0.0,
    }
    plain = await post(running, response_format="text", language="de")
    assert (plain.text, plain.headers["content-type"]) == (
        f"{TEXT}\n",
        "text/plain; charset=utf-8",
    )
    assert unpack_token_ids(asked(stack).prompt_ids) == [START, DE, TRANSCRIBE]
    english = await post(running, "/v1/audio/translations", language="de")
    assert english.json()["text"] == TEXT
    assert unpack_token_ids(asked(stack).prompt_ids) == [START, DE, TRANSLATE]
    srt = (await post(running, response_format="srt")).text
    assert srt.startswith("1\n00:00:00,000 --> 00:00:02,000\nHallo\n\n2\n00:00:02,000 --> ")
    vtt = (await post(running, response_format="vtt")).text
    assert vtt.startswith("WEBVTT\n\n00:00:00.000 --> 00:00:02.000\nHallo\n\n00:00:02.000 --> ")
    async with running.client() as client:
        again = await client.get(f"/v1/streams/{plain.headers['x-request-id']}?stream=false")
        assert again.text == plain.text
        [model] = (await client.get("/v1/models")).json()["data"]
        assert model["tasks"] == ["transcribe"]
        assert (await client.get("/health_generate")).json()["text"].startswith("Hallo")
    told = await ask(
        stack,
        "audio.translations",
        {"model": "tiny", "file": base64.b64encode(WAV[:90_000]).decode(), "prompt": "Du"},
    )
    assert json.loads(told.data)["text"].startswith("Hallo")
    assert unpack_token_ids(asked(stack).prompt_ids) == [
        *(PREVIOUS, *text(" Du"), START, TRANSLATE),
    ]


async def test_the_frames_are_where_pixels_are(stack: Stack) -> None:
    running = await start(stack)
    stack.answer(lambda _: Script(["x"], never_finish=True, piece_ids=[[DE]]))
    async with running.client() as client:
        form = {"model": "tiny", "stream": "true"}
        files = {"file": ("a.wav", WAV)}
        async with client.stream("POST", URL, data=form, files=files) as answer:
            rid = answer.headers["x-request-id"]
            await eventually(lambda: stack.backend.runs)
            request = asked(stack)
            assert request.prompt_object
            store = await stack.cluster.nc.jetstream().object_store(
                stack.cluster.subjects.objects_bucket
            )
            stored = (await store.get(request.prompt_object)).data
            assert stored is not None
            [frames] = prompt_data(request, stored).pixels
            assert len(frames) % 64 == 0
            assert len(frames) // 64 > 4100
            assert np.isfinite(np.frombuffer(frames, "<f4")).all()
            await client.post("/abort_request", json={"rid": rid})
            assert "error" in (await answer.aread()).decode()


async def test_streams_tell_segments_and_go_on_from_any_event(stack: Stack) -> None:
    running = await start(stack)
    answer = await post(running, stream="true")
    events = events_of(answer.text)
    deltas = [each["delta"] for _, each in events if each["type"] == "transcript.text.delta"]
    assert "".join(deltas) == TEXT
    assert events[-1][1] == {
        "type": "transcript.text.done",
        "text": TEXT,
        "usage": {"type": "duration", "seconds": 41.0},
    }
    for idx, (event_id, _) in enumerate(events[:-1]):
        async with running.client() as client:
            rest = await client.post(URL, headers={"Last-Event-ID": event_id})
        assert [each for _, each in events_of(rest.text)] == joined(events[idx + 1 :])


def events_of(body: str) -> list[tuple[str, Any]]:
    """Ids and data, but for the last, which says that it is the last."""
    found, event_id = [], ""
    for line in body.splitlines():
        if line.startswith("id: "):
            event_id = line[4:]
        elif line.startswith("data: {"):
            found.append((event_id, json.loads(line[6:])))
    return found


def joined(events: list[tuple[str, Any]]) -> list[Any]:
    """What is there already comes at once."""
    *deltas, done = [each for _, each in events]
    text = "".join(each["delta"] for each in deltas)
    return [*([{"type": "transcript.text.delta", "delta": text}] if text else []), done]


async def test_openais_client_reads_it(stack: Stack) -> None:
    running = await start(stack)
    client = AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)
    async with client:
        said = await client.audio.transcriptions.create(
            model="tiny",
            file=("a.wav", WAV),
            response_format="verbose_json",
            timestamp_granularities=["segment"],
            language="de",
        )
        assert (said.text, len(said.segments or ())) == (TEXT, 5)
        stream = await client.audio.transcriptions.create(model="tiny", file=WAV, stream=True)
        kinds = [event.type async for event in stream]
        assert kinds[-1] == "transcript.text.done"


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"data": b""}, "file", "'file' is required"),
    ({"data": b"<svg/>"}, "file", "'file' is audio that is none of WAV"),
    ({"model": "tiny2"}, "model", "tiny2"),
    ({"language": "xx"}, "language", "knows de, en"),
    ({"temperature": "hot"}, "temperature", "wrong type"),
    ({"temperature": "9"}, "temperature", "9"),
    ({"response_format": "xml"}, "response_format", "must be one of json, text, srt"),
    ({"stream": "true", "response_format": "srt"}, "response_format", "its events are JSON"),
    ({"timestamp_granularities[]": "word"}, "timestamp_granularities", "segments alone"),
    ({"timestamp_granularities[]": "segment"}, "timestamp_granularities", "verbose_json"),
    ({"include[]": "logprobs"}, "include", "not supported"),
]


async def test_what_is_wrong_is_told_by_its_name(stack: Stack) -> None:
    running = await start(stack)
    for fields, param, told in WRONG:
        answer = await post(running, **fields)
        error = answer.json()["error"]
        assert told in error["message"]
        assert (error["param"], answer.status_code // 100) == (param, 4), fields
    assert not stack.backend.runs


async def test_other_bodies_are_refused(stack: Stack) -> None:
    running = await start(stack)
    async with running.client() as client:
        told = await client.post(URL, json={"model": "tiny"})
        assert (told.status_code, told.json()["error"]["param"]) == (400, "content-type")
        chat = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
        told = await client.post("/v1/chat/completions", json=chat)
        assert "use /v1/audio/transcriptions" in told.json()["error"]["message"]
        large = {"file": ("a.wav", bytes(26 << 20))}
        told = await client.post(URL, data={"model": "tiny"}, files=large)
        assert (told.status_code, told.json()["error"]["param"]) == (413, "file")
    assert not stack.backend.runs


def test_a_card_is_read_by_older_builds() -> None:
    assert decode(HearingCard, encode(CARD)) == CARD
