"""Whisper in the engine, beside transformers' own, and beside itself."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import torch

from shared.errors import ConfigError
from shared.protocol.finish import FinishReason
from shared.protocol.hearing_card import TranscriptRule
from shared.token_log.transcript import Transcript
from tests.tiny_whisper import CONTEXT_LEN, IDS, TIMESTAMP_ID, save_tiny_whisper
from tests.worker.engine.tiny_models import RecordingRunner
from tests.worker.engine_fakes import FakeChannel, make_add
from worker.engine.cpu.cross_cache import HearingRunner
from worker.engine.cpu.model_runner import ModelRunner
from worker.engine.loading.engine_loader import EngineLoader
from worker.engine.loop.engine import Engine
from worker.engine.models.speech.whisper_model import WhisperEncoder
from worker.engine_link.engine_config import EngineConfig
from worker.engine_link.engine_messages import AddRequest, RunAudio

pytestmark = pytest.mark.torch

TASK = [IDS[f"<|{each}|>"] for each in ("startoftranscript", "en", "transcribe")]
FRAMES = 4100


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_whisper(tmp_path_factory.mktemp("whisper"))


class _Ears:
    """An engine that hears, in this process."""

    def __init__(self, path: Path, **config: Any) -> None:
        defaults: dict[str, Any] = {"num_threads": 1, "num_kv_tokens": 1024, "max_running": 4}
        defaults |= {"max_step_s": 60.0, "target_itl_s": 60.0, "max_step_tokens": 64}
        self.channel = FakeChannel()
        loader = EngineLoader(
            EngineConfig(model_path=str(path), **(defaults | config)), self.channel
        )
        self._loop = loader.load()
        assert isinstance(self._loop._engine, Engine)
        self.engine = self._loop._engine
        runner = self.engine._steps._runner
        assert isinstance(runner, HearingRunner)
        assert isinstance(runner._runner, ModelRunner)
        self.recording = RecordingRunner(runner._runner)
        runner._runner = self.recording  # type: ignore[assignment]

    def run(self, *commands: AddRequest) -> dict[int, list[int]]:
        self.channel.commands = list(commands)
        self._loop.run(until_idle=True)
        self.engine._scheduler.check_integrity()
        return self.channel.tokens()


def frames(num_frames: int = FRAMES, seed: int = 0) -> npt.NDArray[np.float32]:
    """Behind their end zeros, which transformers puts there."""
    made = np.random.default_rng(seed).normal(0, 0.6, (num_frames, 16)).astype(np.float32)
    return np.concatenate([made, np.zeros((1, 16), np.float32)])


def transcription(
    run_id: int,
    heard: npt.NDArray[np.float32],
    output_ids: tuple[int, ...] = (),
    prompt_ids: list[int] = TASK,
    **sampling: Any,
) -> AddRequest:
    command = make_add(run_id, prompt_ids, output_ids, **({"max_tokens": 4096} | sampling))
    data = heard.astype("<f4").tobytes()
    audio = RunAudio(len(heard) - 1, hashlib.sha256(data).digest(), data)
    return msgspec.structs.replace(command, audio=audio)


def whole(path: Path) -> Any:
    from transformers import WhisperForConditionalGeneration

    return WhisperForConditionalGeneration.from_pretrained(path, dtype=torch.float32).eval()


def test_logits_are_those_of_transformers(checkpoint: Path) -> None:
    ears, heard = _Ears(checkpoint), frames(2000)
    tokens = ears.run(transcription(1, heard))[1]
    window = np.pad(heard, ((0, 999), (0, 0))).T
    steps = sorted(key for key in ears.recording.logits if key[0] == -1)
    num_steps = next((i for i, each in enumerate(tokens) if each == IDS["<|endoftext|>"]), 20) + 1
    ids = torch.tensor([TASK + tokens[: len(steps)]])
    with torch.inference_mode():
        theirs = whole(checkpoint)(
            input_features=torch.from_numpy(window)[None], decoder_input_ids=ids
        ).logits[0]
    assert len(steps) == min(num_steps, CONTEXT_LEN - 3) > 3
    ours = torch.stack([ears.recording.logits[key] for key in steps])
    expected = theirs[[position - 1 for _, position in steps]]
    assert (ours - expected).norm() / expected.norm() < 1e-4
    assert (theirs[:-1] - theirs[1:]).norm() > 1e-3


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("task", ["transcribe", "translate"])
def test_long_audio_is_heard_as_by_transformers(checkpoint: Path, seed: int, task: str) -> None:
    heard = frames(seed=seed)
    prompt = [*TASK[:2], IDS[f"<|{task}|>"]]
    tokens = _Ears(checkpoint).run(transcription(1, heard, prompt_ids=prompt))[1]
    rule = TranscriptRule(
        FRAMES, IDS["<|endoftext|>"], TIMESTAMP_ID, CONTEXT_LEN - 3, CONTEXT_LEN - 3
    )
    transcript = Transcript(rule)
    for token_id in tokens:
        transcript.add(token_id)
    theirs = whole(checkpoint).generate(
        torch.from_numpy(heard[:-1].T[None].copy()),
        attention_mask=torch.ones(1, FRAMES, dtype=torch.long),
        return_timestamps=True,
        return_segments=True,
        language="en",
        task=task,
    )["segments"][0]
    expected = [
        (
            pytest.approx(float(each["start"])),
            pytest.approx(float(each["end"])),
            text,
        )
        for each in theirs
        if (text := tuple(t for t in each["tokens"].tolist() if t < TIMESTAMP_ID))
    ]
    assert [each[:3] for each in transcript.segments] == expected
    assert transcript.is_over
    assert len(expected) > 1


def test_resumed_anywhere_and_in_company_it_is_the_same(checkpoint: Path) -> None:
    heard = frames()
    start = [IDS["<|startofprev|>"], 65, 66, TASK[0], TASK[2]]  # which language, the model finds
    sampling: dict[str, Any] = {"temperature": 0.8, "seed": 3}
    alone = _Ears(checkpoint).run(transcription(1, heard, prompt_ids=start, **sampling))[1]
    assert alone[0] in {IDS[f"<|{each}|>"] for each in ("en", "de", "fr")}
    ears = _Ears(checkpoint, num_kv_tokens=96)  # some are retracted
    cuts = range(0, len(alone), 3)
    done = ears.run(
        *(transcription(cut + 1, heard, tuple(alone[:cut]), start, **sampling) for cut in cuts),
        *(transcription(1000 + each, frames(900, each)) for each in range(3)),
    )
    assert [alone[:cut] + done[cut + 1] for cut in cuts] == [alone] * len(cuts)
    finishes = ears.channel.finishes()
    assert {each.reason for each in finishes.values()} == {FinishReason.STOP}


def test_what_cannot_be_heard_is_refused(checkpoint: Path) -> None:
    ears = _Ears(checkpoint)
    short = transcription(1, frames(10))
    assert short.audio is not None
    cut = msgspec.structs.replace(short.audio, frames=short.audio.frames[:-3])
    ears.run(
        msgspec.structs.replace(short, audio=cut),
        make_add(2, TASK),
        transcription(3, frames(), max_tokens=2),
    )
    told = {run_id: each.message for run_id, each in ears.channel.finishes().items()}
    assert told == {
        1: "its audio has 701 bytes for 10 frames of 16 numbers",
        2: "the model hears, and the request has no audio",
        3: "the transcript has 2 tokens, and there is more to be heard",
    }


def test_what_requests_hear_is_counted(checkpoint: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(
        "worker.engine.loading.memory_check.available_memory_bytes", lambda: 64 << 20
    )
    _Ears(checkpoint, max_running=4)
    with pytest.raises(ConfigError, match=r"those of audio 0\.14 GiB \(max_running=200\)"):
        _Ears(checkpoint, max_running=200, max_step_tokens=200)


def test_an_engine_that_hears_for_long_does_not_hang(checkpoint: Path, monkeypatch: Any) -> None:
    heard = WhisperEncoder.keys_and_values

    def slow(encoder: WhisperEncoder, window: Any) -> torch.Tensor:
        time.sleep(0.2)  # its time is what is measured
        return heard(encoder, window)

    monkeypatch.setattr(WhisperEncoder, "keys_and_values", slow)
    ready = _Ears(checkpoint)._loop._ready
    assert ready.one_token_step_s >= 0.2
    assert "of audio is heard in" in ready.remark
