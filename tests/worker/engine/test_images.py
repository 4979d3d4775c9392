"""Prompts with images beside transformers' own `generate`: in chunks, from the cache, resumed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from shared.checkpoint.model_files import ModelFiles
from shared.checkpoint.tokenizer_bundle import TokenizerBundle
from shared.errors import ConfigError
from shared.protocol.finish import FinishReason
from shared.protocol.image_sizes import PixelSize
from shared.protocol.sampling import BeamParams
from shared.protocol.token_ids import unpack_token_ids
from tests.tiny_llava import IMAGE_TOKEN_ID, NUM_TOKENS, Pixels, random_pixels, save_tiny_llava
from tests.worker.engine.tiny_models import Rig, random_prompt
from tests.worker.engine_fakes import make_add
from worker.engine.models.registry import read_model_config
from worker.engine.models.transformers_model import TransformersModel
from worker.engine.request.schedule_batch import ScheduleBatch
from worker.engine.request.step_result import StepHandle
from worker.engine_link.engine_messages import AddRequest, RunImage

NUM_NEW = 12
IMAGE = [IMAGE_TOKEN_ID] * NUM_TOKENS


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llava(tmp_path_factory.mktemp("llava"))


class Reference:
    """transformers' own image processor and `generate`."""

    def __init__(self, path: Path) -> None:
        from transformers import AutoModelForImageTextToText
        from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil

        self._processor = LlavaImageProcessorPil.from_pretrained(path)
        self._model = AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32)

    def tokens(self, prompt_ids: Sequence[int], images: Sequence[Pixels]) -> list[int]:
        input_ids = torch.tensor([list(prompt_ids)])
        pixels = self._processor(list(images), return_tensors="pt") if images else {}
        output = self._model.generate(
            input_ids=input_ids,
            attention_mask=torch.ones_like(input_ids),
            do_sample=False,
            max_new_tokens=NUM_NEW,
            eos_token_id=None,
            pad_token_id=0,
            **pixels,
        )
        new: list[int] = output[0, len(prompt_ids) :].tolist()
        return new


@pytest.fixture(scope="module")
def reference(path: Path) -> Reference:
    return Reference(path)


def prompt_of(*parts: Pixels | list[int]) -> tuple[list[int], list[Pixels], tuple[RunImage, ...]]:
    """Token ids, where an image stands for its placeholders."""
    prompt_ids: list[int] = []
    images: list[Pixels] = []
    runs: list[RunImage] = []
    for part in parts:
        if isinstance(part, list):
            prompt_ids += part
            continue
        data = part.tobytes()
        digest = hashlib.sha256(data).digest()
        runs.append(RunImage(len(prompt_ids), NUM_TOKENS, digest, data))
        images.append(part)
        prompt_ids += IMAGE
    return prompt_ids, images, tuple(runs)


def add_of(
    run_id: int, *parts: Pixels | list[int], output: Sequence[int] = (), **kwargs: Any
) -> AddRequest:
    prompt_ids, _, images = prompt_of(*parts)
    kwargs = {"max_tokens": NUM_NEW, "ignore_eos": True} | kwargs
    return make_add(run_id, prompt_ids, output, images=images, **kwargs)


def count_images(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Fills with what goes through the vision tower."""
    seen: list[bytes] = []
    encoder = rig.runner._runner._image_encoder
    assert encoder is not None
    tower = encoder._tower
    assert isinstance(tower, TransformersModel)
    compute: Callable[[torch.Tensor, PixelSize, int], torch.Tensor] = tower.image_features

    def image_features(pixels: torch.Tensor, size: PixelSize, num_frames: int) -> torch.Tensor:
        seen.append(pixels.numpy().tobytes())
        return compute(pixels, size, num_frames)

    monkeypatch.setattr(tower, "image_features", image_features)
    return seen


A, B = random_pixels(1), random_pixels(2)
TEXT = random_prompt(21, seed=1)
TAIL = random_prompt(9, seed=2)


@pytest.mark.parametrize("config", [{}, {"overlap": True}, {"speculate": "ngram"}])
def test_images_beside_text_in_chunks(
    path: Path, reference: Reference, config: dict[str, Any]
) -> None:
    """Steps of 24 tokens: each image takes several, and shares them with others."""
    stories: dict[int, list[Pixels | list[int]]] = {
        1: [TEXT, A, TAIL],
        2: [random_prompt(70, seed=3)],
        3: [A, TAIL, B],
        4: [TEXT, B, TAIL],
        5: [[7], A, B, TAIL],
    }
    rig = Rig(path, max_step_tokens=24, **config)
    made = rig.run(*(add_of(run_id, *parts) for run_id, parts in stories.items()))
    for run_id, parts in stories.items():
        prompt_ids, images, _ = prompt_of(*parts)
        assert made[run_id] == reference.tokens(prompt_ids, images), run_id
    assert made[1] != made[4]


def test_the_cache_knows_images_apart(
    path: Path, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(path)
    seen = count_images(rig, monkeypatch)
    first = rig.run(add_of(1, TEXT, A, TAIL))[1]
    again = rig.run(add_of(2, TEXT, A, TAIL))[2]
    other = rig.run(add_of(3, TEXT, B, TAIL))[3]
    text = rig.run(make_add(4, TEXT + IMAGE + TAIL, max_tokens=NUM_NEW, ignore_eos=True))[4]
    cached = {run_id: finish.num_cached_tokens for run_id, finish in rig.channel.finishes().items()}
    assert cached == {1: 0, 2: 64, 3: 16, 4: 16}  # pages of 16; the image begins at 21
    assert seen == [A.tobytes(), B.tobytes()]
    assert first == again == reference.tokens(TEXT + IMAGE + TAIL, [A])
    assert other == reference.tokens(TEXT + IMAGE + TAIL, [B])
    assert text not in (first, other)


def test_a_cached_part_of_an_image(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """32 of 57 tokens are found: the rest of the image is computed from its middle on."""
    whole = Rig(path).run(add_of(1, TEXT, A))[1]
    rig = Rig(path)
    seen = count_images(rig, monkeypatch)
    assert rig.run(add_of(1, TEXT, A, max_tokens=1)) == {1: whole[:1]}
    rig.engine._scheduler._ledger.allocator.free(rig.engine._scheduler._ledger.cache.evict(1))
    assert rig.run(add_of(2, TEXT, A))[2] == whole
    assert rig.channel.finishes()[2].num_cached_tokens == 32
    assert len(seen) == 1  # what was made of it is there still


def test_it_is_seen_once_in_many_chunks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(path, max_step_tokens=16)
    seen = count_images(rig, monkeypatch)
    rig.run(add_of(1, TEXT, A, TAIL))
    assert len([end for [(_, _, end)] in rig.runner.batches if end <= 66]) == 5
    assert seen == [A.tobytes()]


def test_a_step_sees_one_new_image(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a step with many of them would take as long as one that hangs."""
    rig = Rig(path)
    seen = count_images(rig, monkeypatch)
    num_seen: list[int] = []
    launch = rig.runner.launch

    def counting(batch: ScheduleBatch) -> StepHandle:
        handle = launch(batch)
        num_seen.append(len(seen))
        return handle

    monkeypatch.setattr(rig.runner, "launch", counting)
    c, d = random_pixels(3), random_pixels(4)
    made = rig.run(add_of(1, TEXT, A, B, TAIL), add_of(2, c, d), add_of(3, TEXT, TAIL))
    assert num_seen[:4] == [1, 2, 3, 4]
    assert len(seen) == 4
    monkeypatch.undo()
    assert made[1] == Rig(path).run(add_of(1, TEXT, A, B, TAIL))[1]


def test_a_resumed_and_a_retracted_run_say_the_same(path: Path, reference: Reference) -> None:
    expected = reference.tokens(TEXT + IMAGE + TAIL, [A])
    rest = Rig(path).run(add_of(1, TEXT, A, TAIL, output=expected[:5]))[1]
    assert expected[:5] + rest == expected
    # Pages for about half of them: they must give way to each other.
    rig = Rig(path, num_kv_tokens=400, max_step_tokens=24)
    runs = [
        add_of(run_id, [run_id + 9], TEXT, (A, B)[run_id % 2], TAIL, max_tokens=100)
        for run_id in range(5)
    ]
    made = rig.run(*runs)
    assert rig.channel.steps[-1].load.num_preemptions > 0
    roomy = Rig(path)
    assert made == roomy.run(*runs)
    assert roomy.channel.steps[-1].load.num_preemptions == 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"start": 30}, "image 0 stands at token 30, where it cannot"),
        ({"num_tokens": 9}, "image 0 has 9 tokens, of the model 36"),
        ({"pixels": b"xyz"}, "image 0 has 3 bytes of pixels, the model 1728"),
    ],
)
def test_images_that_do_not_fit(path: Path, change: dict[str, Any], sentence: str) -> None:
    values: dict[str, Any] = {"start": 4, "num_tokens": NUM_TOKENS, "digest": b"d"}
    values |= {"pixels": A.tobytes()} | change
    rig = Rig(path)
    rig.run(make_add(1, random_prompt(60, 5), images=(RunImage(**values),)))
    finish = rig.channel.finishes()[1]
    assert (finish.reason, finish.message) == (FinishReason.ERROR, sentence)


def test_a_model_without_eyes(tiny_llama: Path) -> None:
    rig = Rig(tiny_llama)
    rig.run(add_of(1, TEXT, A))
    assert rig.channel.finishes()[1].message == "the model takes no images"


def test_the_card_says_what_the_files_say(path: Path) -> None:
    card = ModelFiles.read(path).card("m", TokenizerBundle.of_numbers(300))
    vision = card.vision
    assert vision is not None
    assert read_model_config(path).sight == card.sight == vision.sight
    assert (vision.image_token_id, vision.num_tokens) == (IMAGE_TOKEN_ID, NUM_TOKENS)
    assert (vision.height, vision.width, vision.shortest_edge) == (24, 24, 24)


def test_a_tower_without_a_class_token(tmp_path: Path) -> None:
    path = save_tiny_llava(
        tmp_path, tower="siglip_vision_model", vision_feature_select_strategy="full"
    )
    made = Rig(path).run(add_of(1, TEXT, A, TAIL))[1]
    assert made == Reference(path).tokens(TEXT + IMAGE + TAIL, [A])


@pytest.mark.parametrize(
    ("file", "change", "sentence"),
    [
        ("config.json", {"image_token_index": 300}, "300 is beyond vocab_size=300"),
        ("config.json", {"vision_config": {"model_type": "pixtral"}}, "model_type 'pixtral'"),
        ("preprocessor_config.json", {"do_pad": True}, "do_pad=True is not supported"),
        ("preprocessor_config.json", {"do_rescale": False}, "do_rescale=False"),
        ("preprocessor_config.json", {"size": {"longest_edge": 9}}, "'longest_edge': 9"),
        ("preprocessor_config.json", {"crop_size": {"height": 20, "width": 20}}, "makes 20 x 20"),
        ("preprocessor_config.json", {"image_mean": 0.5}, "image_mean=0.5 is not supported"),
    ],
)
def test_checkpoints_that_are_refused(
    path: Path, tmp_path: Path, file: str, change: dict[str, Any], sentence: str
) -> None:
    for name in ("config.json", "preprocessor_config.json"):
        values = json.loads((path / name).read_text())
        (tmp_path / name).write_text(json.dumps(values | change if name == file else values))
    with pytest.raises(ConfigError, match=sentence):
        read_model_config(tmp_path)


def test_a_beam_search_sees_them(path: Path, reference: Reference) -> None:
    """One beam is greedy."""
    rig = Rig(path)
    rig.run(*(add_of(idx, TEXT, image, beam=BeamParams(1, 1)) for idx, image in enumerate((A, B))))
    found = [unpack_token_ids(rig.channel.finishes()[idx].beams[0].token_ids) for idx in range(2)]
    assert found == [reference.tokens(prompt_of(TEXT, image)[0], [image]) for image in (A, B)]
    assert found[0] != found[1]
