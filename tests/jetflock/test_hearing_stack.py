"""`jetflock serve` with models that hear: their worker is killed in the middle of an answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.deploy.local_stack import REAL_ROLES, LocalStack
from tests.frontend.audio.test_chat_audio import AUDIO_ID, audio_part, bundle
from tests.tiny_ears import save_tiny_ears
from tests.tiny_whisper import save_tiny_whisper, sound, wav_file

pytestmark = [
    *(pytest.mark.integration, pytest.mark.e2e, pytest.mark.torch, pytest.mark.slow),
    *(pytest.mark.nightly, pytest.mark.timeout(300)),
]


def test_a_transcript_goes_on_where_its_worker_died(tmp_path: Path) -> None:
    model = save_tiny_whisper(tmp_path / "whisper")
    stack = LocalStack(tmp_path, str(model), "--model-name", "whisper", program=REAL_ROLES).start()
    try:
        stack.wait_ready(120)
        url = f"http://127.0.0.1:{stack.port}/v1/audio/transcriptions"
        form: Any = {"model": "whisper", "temperature": "0.8", "seed": "5", "stream": "true"}
        file = {"file": ("a.wav", wav_file(sound(300.0)))}
        whole = httpx.post(url, data=form, files=file, timeout=120)
        assert whole.text.count("transcript.text.delta") > 4
        told, victims = "", stack.roles("worker")
        with httpx.stream("POST", url, data=form, files=file, timeout=240) as answer:
            for piece in answer.iter_text():
                told += piece
                if "delta" in told and victims:
                    victims.pop().kill()
        assert not victims, "it was killed"
        assert text_of(told) == text_of(whole.text)
        assert "transcript.text.done" in told
    finally:
        stack.kill()


def test_a_chat_about_audio_goes_on_where_its_worker_died(tmp_path: Path) -> None:
    model = save_tiny_ears(tmp_path / "ears", "voxtral", AUDIO_ID)
    for name, content in bundle().files.items():
        (model / name).write_bytes(content)
    stack = LocalStack(tmp_path, str(model), "--model-name", "ears", program=REAL_ROLES).start()
    try:
        stack.wait_ready(120)
        url = f"http://127.0.0.1:{stack.port}/v1/chat/completions"
        parts = [audio_part(wav_file(sound(40.0))), {"type": "text", "text": "Hear"}]
        body: Any = {
            "model": "ears",
            "messages": [{"role": "user", "content": parts}],
            "max_tokens": 150,
            "ignore_eos": True,
            "temperature": 0.8,
            "seed": 5,
        }
        whole = httpx.post(url, json=body, timeout=120).json()
        assert whole["usage"]["prompt_tokens_details"]["audio_tokens"] == 2 * 75
        told, victims = "", stack.roles("worker")
        with httpx.stream("POST", url, json=body | {"stream": True}, timeout=240) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    (choice,) = json.loads(line.removeprefix("data: "))["choices"]
                    told += choice["delta"].get("content") or ""
                if told and victims:
                    victims.pop().kill()
        assert not victims, "it was killed"
        assert told == whole["choices"][0]["message"]["content"]
    finally:
        stack.kill()


def text_of(events: str) -> list[str]:
    """The last event has all of it; the others may come in other pieces."""
    return [line for line in events.splitlines() if "transcript.text.done" in line]
