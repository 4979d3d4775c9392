"""Audio in the chats of models whose text is a decoder of its own: beside transformers' own
forward, and the same bits however a prompt is cut.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from frontend.audio.loader import spectrogram_of
from frontend.images.loader import LoadedAudio
from frontend.images.placeholders import prompt_of
from shared.checkpoint.hearing_files import SOUND_FAMILIES
from shared.checkpoint.model_files import ModelFiles
from shared.checkpoint.tokenizer_bundle import TokenizerBundle
from shared.errors import ConfigError
from tests.tiny_decoder import VOCAB_SIZE
from tests.tiny_ears import AUDIO_TOKEN_ID, EARS, Reference, save_tiny_ears
from tests.tiny_whisper import Samples, sound, wav_file
from tests.worker.engine.tiny_models import Rig, random_prompt
from tests.worker.engine_fakes import make_add
from worker.engine.models.registry import read_model_config
from worker.engine.models.vision.tower import Tower
from worker.engine_link.engine_messages import AddRequest, RunImage

NUM_NEW = 6
MAX_ERROR = 1e-4  # relative
A, B, LONG = sound(1.03, seed=1), sound(0.25, seed=2), sound(31.2, seed=3)
TEXT, TAIL = random_prompt(21, seed=1), random_prompt(9, seed=2)
Part = Samples | list[int]


class Hearing:
    """A tiny checkpoint, and what its prompts are."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = save_tiny_ears(path, name)
        self.reference = Reference(self.path, name)
        sound = read_model_config(self.path).sound
        assert sound is not None
        self.sound = sound
        self.stories: dict[int, list[Part]] = {
            1: [TEXT, A, TAIL],
            2: [random_prompt(70, seed=3)],
            3: [[7], A, TAIL, LONG if not sound.max_windows else sound_of(7.1), [8]],
            4: [TEXT, B, TAIL],
        }

    def prompt(self, parts: Sequence[Part]) -> tuple[list[int], tuple[RunImage, ...]]:
        """Token ids, where audio stands for its placeholders."""
        token_ids: list[int] = []
        loaded = []
        for part in parts:
            if isinstance(part, list):
                token_ids += part
            else:
                heard = spectrogram_of(wav_file(part), self.sound.num_mel_bins, 1800.0)
                loaded.append(LoadedAudio.of(heard))
                token_ids.append(AUDIO_TOKEN_ID)
        model: Any = SimpleNamespace(card=SimpleNamespace(sight=None, sound=self.sound))
        prompt = prompt_of(token_ids, loaded, model)
        runs = [
            RunImage(
                *(each.start, each.num_tokens, each.digest, pixels),
                num_sound_frames=each.num_sound_frames,
            )
            for each, pixels in zip(prompt.images, prompt.pixels, strict=True)
        ]
        return prompt.token_ids, tuple(runs)

    def add(self, run_id: int, parts: Sequence[Part], output: Sequence[int] = ()) -> AddRequest:
        prompt_ids, windows = self.prompt(parts)
        return make_add(
            run_id,
            prompt_ids,
            output,
            images=windows,
            logit_bias=(
                (AUDIO_TOKEN_ID, -100.0),
            ),  # transformers would take it for one to be heard
            max_tokens=NUM_NEW,
            ignore_eos=True,
        )

    def error(self, rig: Rig, run_id: int, output: list[int]) -> float:
        """Relative, of the logits behind the prompt and all that was said."""
        parts = self.stories[run_id]
        prompt_ids, _ = self.prompt(parts)
        sounds = [part for part in parts if not isinstance(part, list)]
        end = len(prompt_ids)
        theirs = self.reference.logits(prompt_ids + output, sounds)[end - 1 : -1]
        ours = torch.stack([rig.logits[run_id, end + idx] for idx in range(len(output))])
        return float((ours.float() - theirs).norm() / theirs.norm())


def sound_of(seconds: float) -> Samples:
    return sound(seconds, seed=4)


@pytest.fixture(scope="module", params=sorted(EARS))
def hearing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Hearing:
    return Hearing(tmp_path_factory.mktemp(request.param), request.param)


@functools.cache
def alone(hearing: Hearing, run_id: int) -> tuple[list[int], list[torch.Tensor]]:
    """What a story says by itself, and its logits."""
    rig = Rig(hearing.path)
    output = rig.run(hearing.add(run_id, hearing.stories[run_id]))[run_id]
    return output, list(rig.logits.values())


def test_logits_are_those_of_transformers_in_company_and_in_chunks(hearing: Hearing) -> None:
    rig = Rig(hearing.path, max_step_tokens=16)
    made = rig.run(*(hearing.add(run_id, parts) for run_id, parts in hearing.stories.items()))
    for run_id in hearing.stories:
        output, logits = alone(hearing, run_id)
        assert hearing.error(rig, run_id, output) < MAX_ERROR, run_id
        assert made[run_id] == output
        ours = [value for (run, _), value in rig.logits.items() if run == run_id]
        assert all(map(torch.equal, ours, logits))


def test_a_prefix_is_found_for_the_same_audio_alone(hearing: Hearing) -> None:
    rig = Rig(hearing.path)
    rig.run(hearing.add(3, hearing.stories[3]), hearing.add(1, hearing.stories[1]))
    again = rig.run(hearing.add(13, hearing.stories[3]), hearing.add(14, hearing.stories[4]))
    cached = {run_id: finish.num_cached_tokens for run_id, finish in rig.channel.finishes().items()}
    num_tokens = len(hearing.prompt(hearing.stories[3])[0])
    assert (cached[13], cached[14]) == ((num_tokens - 1) // 16 * 16, 16)
    assert (again[13], again[14]) == (alone(hearing, 3)[0], alone(hearing, 4)[0])


def test_a_resumed_run_says_the_same_and_hears_each_window_once(
    hearing: Hearing, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[int] = []
    hears = Tower.sound_features

    def count(tower: Tower, frames: torch.Tensor, num_frames: int) -> torch.Tensor:
        heard.append(num_frames)
        return hears(tower, frames, num_frames)

    expected, _ = alone(hearing, 3)
    rig = Rig(hearing.path, max_step_tokens=16)
    monkeypatch.setattr(Tower, "sound_features", count)
    add = hearing.add(3, hearing.stories[3], expected[:3])
    assert expected[:3] + rig.run(add)[3] == expected
    assert heard == [103, 710] if hearing.sound.max_windows else [103, 3000, 120]


HEARS, PAD = Tower.sound_features, np.pad
# What there is of audio beside its frames, and what takes it away.
FEATURES: dict[str, tuple[str, Any, str, Any]] = {
    "silence that is not attended to": (
        "qwen2_audio",
        Tower,
        "sound_features",
        lambda tower, frames, num: HEARS(tower, frames, 3000)[:, : (num + 1) // 4],
    ),
    "silence that is heard": (
        "voxtral",
        np,
        "pad",
        lambda values, widths, mode: PAD(values, widths),
    ),
    "the order of frames": (
        "voxtral",
        Tower,
        "sound_features",
        lambda tower, frames, num: HEARS(tower, frames.flip(0), num),
    ),
}


# By night: it shows that the comparison with transformers, which every day has, would see it.
@pytest.mark.nightly
@pytest.mark.parametrize("feature", FEATURES)
def test_each_feature_matters(
    feature: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, *change = FEATURES[feature]
    hearing = Hearing(tmp_path, name)
    add = hearing.add(3, hearing.stories[3])
    rig = Rig(hearing.path)
    monkeypatch.setattr(*change)
    output = rig.run(add)[3]
    monkeypatch.undo()
    assert hearing.error(rig, 3, output) > 1e-3


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"num_tokens": 3}, "window 0 has 3 tokens, of the model "),
        ({"pixels": bytes(640)}, "window 0 is of 103 frames, and has 640 bytes"),
        ({"num_sound_frames": 3001}, "window 0 is of 3001 frames, and has 6848 bytes"),
        ({"num_sound_frames": 0}, "the model takes no images"),
    ],
)
def test_windows_that_do_not_fit(hearing: Hearing, change: dict[str, Any], sentence: str) -> None:
    prompt_ids, (window,) = hearing.prompt(hearing.stories[1])
    values = {name: getattr(window, name) for name in window.__struct_fields__} | change
    rig = Rig(hearing.path)
    rig.run(make_add(1, prompt_ids, images=(RunImage(**values),)))
    assert str(rig.channel.finishes()[1].message).startswith(sentence)


def test_the_card_says_what_the_files_say(hearing: Hearing) -> None:
    card = ModelFiles.read(hearing.path).card("m", TokenizerBundle.of_numbers(VOCAB_SIZE))
    assert (card.sound, card.sight, card.hearing) == (hearing.sound, None, None)
    assert card.can_generate


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"audio_token_id": 300}, "'audio_token_id' is 300, must be below vocab_size=300"),
        ({"audio_token_id": None}, "'audio_token_id' is None, must be a number"),
        ({"audio_config": {"max_source_positions": 750}}, "750, must be 1500"),
        ({"audio_config": {"num_mel_bins": 80}}, "'feature_size' is 16, must be 80"),
        ({"audio_config": {"num_mel_bins": 16, "hidden_size": 3}}, "'intermediate_size' is 5120"),
    ],
)
def test_checkpoints_that_are_refused(
    tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    path = save_tiny_ears(tmp_path, "voxtral")
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ConfigError, match=sentence):
        ModelFiles.read(path).card("m", TokenizerBundle.of_numbers(VOCAB_SIZE))


def test_every_family_is_tested() -> None:
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES as NAMES,
    )

    assert {NAMES[each] for each in EARS} == SOUND_FAMILIES.keys()
