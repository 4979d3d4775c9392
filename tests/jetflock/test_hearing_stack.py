"""`jetflock serve` with a model that hears: its worker is killed in the middle of a transcript."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.deploy.local_stack import REAL_ROLES, LocalStack
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


def text_of(events: str) -> list[str]:
    """The last event has all of it; the others may come in other pieces."""
    return [line for line in events.splitlines() if "transcript.text.done" in line]
