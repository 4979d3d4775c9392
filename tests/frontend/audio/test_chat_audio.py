"""Audio in chats: what of it reaches the model, and what is refused."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from tokenizers import AddedToken

from frontend.jobs.job import Caller, Job
from frontend.models.model_directory import ModelDirectory
from shared.checkpoint.tokenizer_bundle import TokenizerBundle
from shared.errors import RequestError
from shared.protocol.model_cards import ModelCard
from shared.protocol.request import ImageSpan
from shared.protocol.sound_card import SOUND_LEVEL, SoundCard
from tests.frontend.audio.test_audio import encoded
from tests.frontend.conftest import Stack
from tests.frontend.directory import AllRequests, FakeCatalog
from tests.frontend.seeing_model import text_part
from tests.frontend.tiny_model import VOCAB_SIZE, make_bundle, make_card, make_tokenizer, register
from tests.tiny_whisper import riff, sound, wav_file

AUDIO_ID = VOCAB_SIZE
POOLED = SoundCard(AUDIO_ID, 16, 4, max_windows=1)
WHOLE = SoundCard(AUDIO_ID, 16, 100, hears_silence=True)
# As Qwen2-Audio's looks for parts.
TEMPLATE = (
    "{% for message in messages %}{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}{% if 'audio' in part %}<|audio|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
)
ONE, TWO, LONG = sound(1.03), sound(0.25, seed=2), sound(31.2)


def bundle() -> TokenizerBundle:
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens([AddedToken("<|audio|>", special=True)])
    files = make_bundle(TEMPLATE).files | {"tokenizer.json": tokenizer.to_str().encode()}
    return TokenizerBundle(files)


def card_of(sound: SoundCard | None) -> ModelCard:
    return make_card(bundle(), vocab_size=VOCAB_SIZE + 1, sound=sound, max_context_len=4096)


def audio_part(data: bytes, kind: str = "wav") -> dict[str, Any]:
    file = {"data": base64.b64encode(data).decode(), "format": kind}
    return {"type": "input_audio", "input_audio": file}


async def job_of(sound: SoundCard | None, *parts: dict[str, Any]) -> Job:
    catalog: Any = FakeCatalog(bundle(), card_of(sound))
    body = {"model": "tiny", "messages": [{"role": "user", "content": list(parts)}]}
    return await AllRequests(ModelDirectory(catalog)).chat.job(body, Caller())


async def test_each_file_stands_where_the_template_puts_it() -> None:
    url = f"data:audio/wav;base64,{base64.b64encode(wav_file(TWO)).decode()}"
    by_url = {"type": "audio_url", "audio_url": {"url": url}}
    job = await job_of(POOLED, text_part("One:"), audio_part(wav_file(ONE)), text_part("x"), by_url)
    (prompt,) = job.prompts
    assert job.needed_level == SOUND_LEVEL
    first, second = prompt.images
    assert (first.start, first.num_tokens, first.num_sound_frames) == (4, 26, 103)
    assert (second.start, second.num_tokens, second.num_sound_frames) == (31, 6, 25)
    assert (prompt.token_ids[4:30], prompt.token_ids[31:]) == ([AUDIO_ID] * 26, [AUDIO_ID] * 6)
    assert [len(each) for each in prompt.pixels] == [4 * 16 * (103 + 4), 4 * 16 * (25 + 4)]
    assert prompt.num_audio_tokens == 32
    again = (await job_of(POOLED, audio_part(wav_file(ONE)))).prompts[0].images[0]
    assert again == ImageSpan(0, 26, first.digest, num_sound_frames=103)


async def test_what_is_long_is_heard_in_windows() -> None:
    (prompt,) = (await job_of(WHOLE, audio_part(wav_file(LONG)))).prompts
    assert [(each.start, each.num_tokens, each.num_sound_frames) for each in prompt.images] == [
        (0, 30, 3000),
        (30, 30, 120),
    ]
    sizes = [len(each) // 64 for each in prompt.pixels]
    assert sizes == [3000, 124]


async def test_other_formats_and_rates_are_the_same_audio() -> None:
    wide = np.repeat(ONE, 2)
    (prompt,) = (await job_of(POOLED, audio_part(wav_file(wide, 32_000)))).prompts
    assert prompt.images[0].num_sound_frames == 103
    (prompt,) = (await job_of(POOLED, audio_part(encoded("mp3", "libmp3lame"), "mp3"))).prompts
    assert prompt.images[0].num_tokens in range(24, 30)


WAV = wav_file(ONE)
LYING = WAV.replace(b"data" + (4 * len(ONE)).to_bytes(4, "little"), b"data\xff\xff\xff\xff")
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a page": (audio_part(b"<html>" * 99), "is audio that is none of WAV, FLAC"),
    "nothing": (audio_part(b""), "is audio that is none of WAV, FLAC"),
    "another format": (audio_part(WAV, "mp3"), "is audio that is in wav, and 'format' is 'mp3'"),
    "no samples": (audio_part(wav_file(ONE[:0])), "is audio that is shorter than 0.1 s"),
    "no rate": (audio_part(riff(1, 1, 1, 8, bytes(99))), "has 1 channels and 1 samples a second"),
    "a long tape": (audio_part(riff(1, 1, 1000, 8, bytes(60_001))), "is longer than 60 s"),
    "too much": (audio_part(bytes(2_200_010)), "has more than 2200000 bytes (--max-audio-bytes)"),
    "beyond its window": (
        audio_part(wav_file(LONG)),
        "31.20 s long, of which the model hears 30 s",
    ),
    "no base64": (
        {"type": "input_audio", "input_audio": {"data": "%%%", "format": "wav"}},
        "is audio that is not in base64",
    ),
    "an URL of nothing": (
        {"type": "audio_url", "audio_url": {"url": "data:,x"}},
        "is audio that is none of WAV",
    ),
    "an URL of base64": (
        {"type": "audio_url", "audio_url": "data:audio/wav;base64,%%%"},
        "is audio whose URL is not base64",
    ),
}


@pytest.mark.parametrize("name", BAD)
async def test_what_cannot_be_heard_is_refused_by_name(name: str) -> None:
    part, told = BAD[name]
    with pytest.raises(RequestError) as raised:
        await job_of(POOLED, text_part("x"), part)
    assert told in raised.value.message
    assert (raised.value.param, raised.value.code, raised.value.status_code) == (
        "messages[0].content[1]",
        "invalid_audio",
        400,
    )


async def test_what_does_not_go_with_audio() -> None:
    audio = audio_part(WAV)
    with pytest.raises(RequestError, match="is audio, and the model 'tiny' takes no audio"):
        await job_of(None, audio)
    with pytest.raises(RequestError, match=r"input_audio\.format.* must be one of"):
        await job_of(POOLED, audio_part(WAV, "pcm16"))
    with pytest.raises(RequestError, match="is audio 4 of 4, a request may have 3"):
        await job_of(POOLED, *[audio] * 4)
    with pytest.raises(RequestError, match="has 2 audio tokens for 1 files of audio"):
        await job_of(POOLED, audio, text_part("<|audio|>"))
    half = audio_part(riff(1, 1, 1000, 8, bytes(30_001)))
    with pytest.raises(RequestError, match=r"is audio, 60\.0 s long with what is before it") as why:
        await job_of(WHOLE, half, half)
    assert why.value.param == "messages[0].content[1]"
    told = (await job_of(replace(POOLED, max_windows=0), audio_part(LYING))).prompts[0].images
    assert told[0].num_sound_frames == 103, "a length that is more than there is"


async def test_answers_tell_of_audio_tokens_and_responses_hear_it_again(stack: Stack) -> None:
    await register(stack.cluster, bundle(), card_of(POOLED))
    running = await stack.start_frontend()
    audio = audio_part(WAV)
    messages = [{"role": "user", "content": [audio, text_part("Hear")]}]
    said = [{"role": "user", "content": [{"type": "input_text", "text": "Hear"}, audio]}]
    async with running.client() as client:
        chat = await client.post(
            "/v1/chat/completions", json={"model": "tiny", "messages": messages, "n": 2}
        )
        assert chat.json()["usage"]["prompt_tokens_details"]["audio_tokens"] == 26
        answer = await client.post("/v1/responses", json={"model": "tiny", "input": said})
        assert answer.status_code == 200, answer.text
        more = {"model": "tiny", "input": "and?", "previous_response_id": answer.json()["id"]}
        assert (await client.post("/v1/responses", json=more)).status_code == 200
        items = await client.get(f"/v1/responses/{answer.json()['id']}/input_items")
        bad = {"model": "tiny", "input": [said[0] | {"content": [audio_part(b"x")]}]}
        error = (await client.post("/v1/responses", json=bad)).json()["error"]
    assert items.json()["data"][0]["content"][1] == audio
    assert (error["param"], error["code"]) == ("input[0].content[0]", "invalid_audio")
    runs = [run.request for run in stack.backend.runs.values()]
    assert {run.images[0].digest for run in runs} == {runs[0].images[0].digest}
    assert [run.images[0].start for run in runs] == [0, 0, 4, 4]
