"""What the files of published checkpoints say about images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shared.checkpoint.vision_files import vision_card

CLIP = {
    "crop_size": {"height": 336, "width": 336},
    "do_center_crop": True,
    "do_convert_rgb": True,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_processor_type": "CLIPImageProcessor",
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "resample": 3,
    "rescale_factor": 0.00392156862745098,
    "size": {"shortest_edge": 336},
}
SIGLIP = {
    "do_convert_rgb": None,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_processor_type": "SiglipImageProcessor",
    "image_std": [0.5, 0.5, 0.5],
    "resample": 3,
    "rescale_factor": 0.00392156862745098,
    "size": {"height": 384, "width": 384},
}


def config_of(kind: str, size: int, image_token: int, vocab: int, **values: Any) -> dict[str, Any]:
    return {
        "architectures": ["LlavaForConditionalGeneration"],
        "image_token_index": image_token,
        "text_config": {"vocab_size": vocab},
        "vision_config": {"model_type": kind, "image_size": size, "patch_size": 14},
        **values,
    }


@pytest.mark.parametrize("is_nested", [False, True], ids=["preprocessor", "processor"])
def test_llava_1_5(tmp_path: Path, is_nested: bool) -> None:
    name = "processor_config.json" if is_nested else "preprocessor_config.json"
    (tmp_path / name).write_text(json.dumps({"image_processor": CLIP} if is_nested else CLIP))
    config = config_of("clip_vision_model", 336, 32000, 32064)
    card = vision_card(tmp_path, config)
    assert card is not None
    assert (card.num_tokens, card.height, card.width, card.shortest_edge) == (576, 336, 336, 336)
    assert (card.image_token_id, card.resample) == (32000, 3)


def test_llava_interleave(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(SIGLIP))
    config = config_of(
        "siglip_vision_model", 384, 151646, 152000, vision_feature_select_strategy="full"
    )
    card = vision_card(tmp_path, config)
    assert card is not None
    assert (card.num_tokens, card.height, card.width, card.shortest_edge) == (729, 384, 384, None)


def test_other_models_take_no_images(tmp_path: Path) -> None:
    assert vision_card(tmp_path, {"architectures": ["LlamaForCausalLM"]}) is None
    assert vision_card(tmp_path, {}) is None
