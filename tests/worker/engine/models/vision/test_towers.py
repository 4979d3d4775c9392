"""Images of models whose text is a decoder of its own: beside transformers' own forward, and the
same bits however a prompt is cut.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from frontend.images import video
from frontend.images.loader import Loaded, LoadedImage, LoadedVideo, read_image
from frontend.images.placeholders import prompt_of
from frontend.images.video import Asked, FrameList, read_moments
from frontend.limits.work_limits import ImageLimits, VideoLimits
from shared.checkpoint.vision.vision_families import TOWER_FAMILIES
from shared.protocol.image_sizes import PixelSize
from shared.protocol.tiled_sizes import AnyresSize
from shared.protocol.video_card import VideoCard
from tests.frontend.seeing_model import image_bytes
from tests.tiny_eyes import (
    ALL_EYES,
    IMAGE_TOKEN_ID,
    UNLIKE,
    VIDEO_TOKEN_ID,
    Clip,
    Reference,
    save_tiny_eyes,
)
from tests.tiny_llava import Pixels, random_pixels
from tests.worker.engine.native.test_native import native_rig, needs_bfloat16
from tests.worker.engine.tiny_models import Rig, random_prompt
from tests.worker.engine_fakes import make_add
from worker.engine import images
from worker.engine.cpu.forward_batch import ForwardBatch
from worker.engine.cpu.torch_attention import _Reach
from worker.engine.models.layer_inputs import LayerInputs
from worker.engine.models.registry import read_model_config
from worker.engine.models.vision import tower
from worker.engine.models.vision.tower import Tower
from worker.engine_link.engine_messages import AddRequest, RunImage

NUM_NEW = 8
_OF_16 = {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 16}
_MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}
NATIVE: dict[str, dict[str, Any]] = {
    "qwen2_5_vl": _OF_16 | {"rope_parameters": _MROPE},
    "qwen3_vl": {},
    "mistral3": {},
}
MAX_ERROR = 1e-4  # relative
A, B, C = random_pixels(1, 40, 23), random_pixels(2, 9, 50), random_pixels(3, 200, 210)
TEXT, TAIL = random_prompt(21, seed=1), random_prompt(9, seed=2)
CLIP = Clip.of([random_pixels(10 + idx, 40, 23) for idx in range(5)], 3.0)
LONG = Clip.of([random_pixels(20 + idx, 9, 50) for idx in range(24)], 0.7)
Part = Pixels | Clip | list[int]
STORIES: dict[int, list[Part]] = {
    1: [TEXT, A, TAIL],
    2: [random_prompt(70, seed=3)],
    3: [A, TAIL, B, [11], C],
    4: [TEXT, B, TAIL],
    5: [[7], A, [8], B, TAIL],
}
OF_VIDEOS: dict[int, list[Part]] = {
    6: [TEXT, CLIP, TAIL],
    7: [TEXT, B, [7], LONG, TAIL, CLIP, [11, 12]],
}


class Seeing:
    """A tiny checkpoint, and what its prompts are."""

    def __init__(self, path: Path, name: str, **text_overrides: Any) -> None:
        self.path = save_tiny_eyes(path, name, **text_overrides)
        self.reference = Reference(self.path, name)
        model = read_model_config(self.path)
        assert model.sight is not None
        self.sight = model.sight
        self.keeps_states = bool(model.state_layers)
        self.stories = STORIES if self.sight.video is None else STORIES | OF_VIDEOS

    def loaded(self, pixels: Pixels) -> LoadedImage:
        """As the frontend makes it."""
        from PIL import Image

        data = image_bytes(Image.fromarray(pixels))
        return read_image(data, self.sight, max_pixels=1_000_000, max_features=1000)

    def loaded_video(self, clip: Clip) -> LoadedVideo:
        """As the frontend makes it."""
        assert self.sight.video is not None
        body = ",".join(base64.b64encode(each).decode() for each in clip.frames)
        of_one, limits = ImageLimits(8, 10**6, 10**6, 1000), VideoLimits(2, 10**6, 99, 10**5)
        frames = FrameList(body, clip.fps, limits, of_one)
        read = read_moments(frames, Asked(), self.sight.video, limits, of_one)
        return LoadedVideo.of(read, self.sight.video)

    def prompt(self, parts: Sequence[Part]) -> tuple[list[int], tuple[RunImage, ...]]:
        """Token ids, where an image stands for its placeholders."""
        token_ids: list[int] = []
        loaded: list[Loaded] = []
        for part in parts:
            if isinstance(part, list):
                token_ids += part
            elif isinstance(part, Clip):
                loaded.append(self.loaded_video(part))
                token_ids += self._places(self.loaded_video(part))
            else:
                loaded.append(self.loaded(part))
                token_ids.append(IMAGE_TOKEN_ID)
        model: Any = SimpleNamespace(card=SimpleNamespace(sight=self.sight, sound=None))
        prompt = prompt_of(token_ids, loaded, model)
        runs = [
            RunImage(
                *(each.start, each.num_tokens, each.digest, pixels, each.height, each.width),
                *(each.num_frames, each.goes_on, each.time),
            )
            for each, pixels in zip(prompt.images, prompt.pixels, strict=True)
        ]
        return prompt.token_ids, tuple(runs)

    def _places(self, loaded: LoadedVideo) -> list[int]:
        """Any words stand for times."""
        assert self.sight.video is not None
        if not self.sight.video.has_stamps:
            return [4, VIDEO_TOKEN_ID, 5]
        stamps = [random_prompt(5, seed=idx) for idx in range(len(loaded.moments))]
        return [each for stamp in stamps for each in (*stamp, 4, VIDEO_TOKEN_ID, 5)]

    def add(
        self, run_id: int, parts: Sequence[Part], output: Sequence[int] = (), **kwargs: Any
    ) -> AddRequest:
        prompt_ids, images = self.prompt(parts)
        never = (
            (IMAGE_TOKEN_ID, -100.0),
            (VIDEO_TOKEN_ID, -100.0),
        )  # transformers would take it for one of the prompt
        kwargs = {"max_tokens": NUM_NEW, "ignore_eos": True} | kwargs
        return make_add(run_id, prompt_ids, output, images=images, logit_bias=never, **kwargs)

    def error(self, rig: Rig, run_id: int, parts: Sequence[Part], output: list[int]) -> float:
        """Relative, of the logits behind the prompt and all that was said."""
        prompt_ids, _ = self.prompt(parts)
        images = [part for part in parts if not isinstance(part, list)]
        end = len(prompt_ids)
        theirs = self.reference.logits(prompt_ids + output, images)[end - 1 : -1]
        ours = torch.stack([rig.logits[run_id, end + idx] for idx in range(len(output))])
        return float((ours.float() - theirs).norm() / theirs.norm())


@pytest.fixture(scope="module", params=UNLIKE)
def seeing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    return Seeing(tmp_path_factory.mktemp(request.param), request.param)


@functools.cache
def alone(seeing: Seeing, run_id: int) -> tuple[list[int], list[torch.Tensor]]:
    """What a story says by itself, and its logits."""
    rig = Rig(seeing.path)
    output = rig.run(seeing.add(run_id, seeing.stories[run_id]))[run_id]
    return output, list(rig.logits.values())


def assert_same_bits(seeing: Seeing, rig: Rig, run_id: int) -> None:
    output, logits = alone(seeing, run_id)
    assert rig.channel.tokens()[run_id] == output
    ours = [value for (run, _), value in rig.logits.items() if run == run_id]
    assert len(ours) == len(logits)
    assert all(map(torch.equal, ours, logits))


def test_logits_are_those_of_transformers(seeing: Seeing) -> None:
    rig = Rig(seeing.path)
    outputs = rig.run(*(seeing.add(run_id, parts) for run_id, parts in seeing.stories.items()))
    for run_id, parts in seeing.stories.items():
        assert seeing.error(rig, run_id, parts, outputs[run_id]) < MAX_ERROR, run_id
        assert_same_bits(seeing, rig, run_id)


@pytest.mark.parametrize("name", sorted(ALL_EYES.keys() - {*UNLIKE}))
def test_other_towers_and_texts(name: str, tmp_path: Path) -> None:
    """In chunks."""
    seeing = Seeing(tmp_path, name)
    rig = Rig(seeing.path, max_step_tokens=24)
    outputs = rig.run(*(seeing.add(run_id, parts) for run_id, parts in seeing.stories.items()))
    for run_id, parts in seeing.stories.items():
        assert seeing.error(rig, run_id, parts, outputs[run_id]) < MAX_ERROR, run_id


def test_chunks_end_within_images(seeing: Seeing) -> None:
    rig = Rig(seeing.path, max_step_tokens=16)
    rig.run(*(seeing.add(run_id, parts) for run_id, parts in seeing.stories.items()))
    for run_id in seeing.stories:
        assert_same_bits(seeing, rig, run_id)


def test_a_prefix_with_images_is_found_for_the_same_images_alone(seeing: Seeing) -> None:
    rig = Rig(seeing.path)
    rig.run(seeing.add(3, STORIES[3]), seeing.add(1, STORIES[1]))
    again = rig.run(seeing.add(13, STORIES[3]), seeing.add(14, STORIES[4]))
    cached = {run_id: finish.num_cached_tokens for run_id, finish in rig.channel.finishes().items()}
    num_tokens = len(seeing.prompt(STORIES[3])[0])
    if seeing.keeps_states:  # only behind some borders of pages
        assert 0 < cached[13] < num_tokens
        assert cached[14] in (0, 16)
    else:
        assert (cached[13], cached[14]) == ((num_tokens - 1) // 16 * 16, 16)
    assert again[13] == alone(seeing, 3)[0]
    assert again[14] == alone(seeing, 4)[0]
    for run_id in seeing.stories.keys() - STORIES.keys():
        for each in (run_id, 10 + run_id):
            made = rig.run(seeing.add(each, seeing.stories[run_id]))
            assert made[each] == alone(seeing, run_id)[0]
        assert rig.channel.finishes()[10 + run_id].num_cached_tokens > len(TEXT)


def test_an_image_of_the_same_bytes_in_another_shape_is_another(seeing: Seeing) -> None:
    wide, tall = random_pixels(5, 16, 32), random_pixels(5, 32, 16)
    assert wide.tobytes() == tall.tobytes()
    rig = Rig(seeing.path)
    for run_id, image in ((1, wide), (2, tall)):
        rig.run(seeing.add(run_id, [image, TAIL]))
    assert rig.channel.finishes()[2].num_cached_tokens == 0


def test_a_resumed_and_a_retracted_run_say_the_same(seeing: Seeing) -> None:
    for run_id in (5, max(seeing.stories)):
        expected, _ = alone(seeing, run_id)
        add = seeing.add(run_id, seeing.stories[run_id], expected[:3], max_tokens=NUM_NEW)
        assert expected[:3] + Rig(seeing.path).run(add)[run_id] == expected
    runs = [
        seeing.add(run_id, [[run_id + 9], TEXT, (A, B)[run_id % 2], TAIL], max_tokens=30)
        for run_id in range(3)
    ]
    longest = max(len(run.prompt_ids) // 4 for run in runs) + 30
    num_kv_tokens = (2 * longest - 24) // 16 * 16  # of two prompts, and not of what they say
    rig = Rig(seeing.path, num_kv_tokens=num_kv_tokens, max_step_tokens=24)
    made = rig.run(*runs)
    assert rig.channel.steps[-1].load.num_preemptions > 0
    roomy = Rig(seeing.path)
    assert made == roomy.run(*runs)
    assert roomy.channel.steps[-1].load.num_preemptions == 0


@pytest.mark.parametrize("config", [{"overlap": True}, {"speculate": "ngram"}])
def test_guesses_and_steps_ahead_know_the_positions(seeing: Seeing, config: dict[str, Any]) -> None:
    if seeing.keeps_states and "speculate" in config:
        pytest.skip("its states cannot be taken back")
    if not (seeing.sight.has_axes or seeing.sight.is_mutual):
        pytest.skip("its positions are those of its tokens")
    rig = Rig(seeing.path, **config)
    made = rig.run(*(seeing.add(run_id, STORIES[run_id], max_tokens=20) for run_id in (1, 2, 5)))
    plain = Rig(seeing.path)
    assert made == plain.run(
        *(seeing.add(run_id, STORIES[run_id], max_tokens=20) for run_id in (1, 2, 5))
    )


def test_a_size_that_no_image_has_is_refused(seeing: Seeing) -> None:
    rig = Rig(seeing.path)
    image = RunImage(0, 4, b"d", bytes(3 * 5 * 7), 5, 7)
    rig.run(make_add(1, random_prompt(60, 5), images=(image,)))
    told = "7 x 5 pixels, as none of the model's"
    if isinstance(seeing.sight.size, AnyresSize):  # any will do
        told = "4 tokens, of the model 10"
    assert rig.channel.finishes()[1].message == f"image 0 has {told}"


def test_tokens_of_an_image_see_each_other(tmp_path: Path) -> None:
    """Also where a step has fewer tokens than the image."""
    seeing = Seeing(tmp_path, "gemma3")
    small = Rig(seeing.path, max_step_tokens=8, max_running=4)
    output = small.run(seeing.add(1, STORIES[1]), seeing.add(2, STORIES[2]))[1]
    assert seeing.error(small, 1, STORIES[1], output) < MAX_ERROR
    ends = [end for batch in small.runner.batches for run_id, _, end in batch if run_id == 1]
    assert ends[:6] == [8, 16, 21, 37, 45, 46]


SEES, GIVEN = Tower.image_features, LayerInputs.of


def given_of_tokens(inputs: LayerInputs, batch: ForwardBatch, stream: torch.Tensor) -> torch.Tensor:
    return GIVEN(inputs, replace(batch, image_rows=()), stream)


def first_frame(sees: Tower, pixels: torch.Tensor, size: PixelSize, *video: int) -> torch.Tensor:
    return SEES(sees, pixels[: size.height], size, *video)


def no_times(_: VideoCard, num_moments: int, __: float) -> list[int]:
    return [0] * num_moments


# What is there of an image beside its features, and what takes it away.
FEATURES: dict[str, tuple[str, Any, str, Any]] = {
    "axes of Qwen2.5-VL": ("qwen2_5_vl", images, "axis_positions", lambda _: None),
    "axes of Qwen3-VL": ("qwen3_vl", images, "axis_positions", lambda _: None),
    "axes of Qwen 3.5": ("qwen3_5", images, "axis_positions", lambda _: None),
    "deep layers": ("qwen3_vl", Tower, "image_features", lambda *image: SEES(*image)[:1]),
    "later tokens": ("gemma3", images, "reach", lambda _: None),
    "later tokens in windows": ("gemma4", images, "reach", lambda _: None),
    "in windows alone": ("gemma4", _Reach, "of", lambda each: _Reach(each.window, None, False)),
    "inputs of layers": ("gemma4", LayerInputs, "of", given_of_tokens),
    "rounded colours": ("llama4", tower, "PIXEL_DTYPES", {}),
    "times of videos of Qwen2-VL": ("qwen2_vl", video, "_times", no_times),
    "times of videos of Qwen2.5-VL": ("qwen2_5_vl", video, "_times", no_times),
    "frames of videos": ("qwen3_vl", Tower, "image_features", first_frame),
}


# By night: it shows that the comparison with transformers, which every day has, would see it.
@pytest.mark.nightly
@pytest.mark.parametrize("feature", FEATURES)
def test_each_feature_matters(
    feature: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, *change = FEATURES[feature]
    monkeypatch.setattr(*change)
    seeing = Seeing(tmp_path, name)
    rig = Rig(seeing.path)
    run_id = 7 if "videos" in feature else 3
    output = rig.run(seeing.add(run_id, seeing.stories[run_id]))[run_id]
    assert seeing.error(rig, run_id, seeing.stories[run_id], output) > 1e-3


@needs_bfloat16
@pytest.mark.parametrize("name", NATIVE)
def test_in_our_cpp(name: str, tmp_path: Path) -> None:
    seeing = Seeing(tmp_path, name, **NATIVE[name])
    adds = [seeing.add(run_id, parts) for run_id, parts in STORIES.items()]
    whole = native_rig(seeing.path)
    outputs = whole.run(*adds)
    for run_id, parts in STORIES.items():
        assert seeing.error(whole, run_id, parts, outputs[run_id]) < 0.08, run_id
    others = [random_pixels(9, 40, 23) if part is A else part for part in STORIES[1]]
    assert seeing.error(whole, 1, others, outputs[1]) > 0.2
    cut = native_rig(seeing.path, max_step_tokens=16)
    assert cut.run(*adds) == outputs
    for place, logits in cut.logits.items():
        assert torch.equal(logits, whole.logits[place])


def test_every_tower_is_tested() -> None:
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as NAMES,
    )

    from tests.tiny_vision import READERS

    assert {NAMES[READERS[each.reader][0]] for each in ALL_EYES.values()} == TOWER_FAMILIES.keys()
