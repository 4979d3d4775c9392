"""What the files of published checkpoints say about images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shared.checkpoint.vision.vision_families import sight_card
from shared.errors import ConfigError
from shared.protocol.image_sizes import (
    AreaSize,
    BadImageSize,
    BudgetSize,
    EdgeSize,
    FixedSize,
    PixelSize,
)
from shared.protocol.model_cards import VisionCard
from shared.protocol.tiled_sizes import AnyresSize, CanvasSize, SplitSize, TilesSize
from tests.tiny_marks import write_marks

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
    card = VisionCard.maybe_of(sight_card(tmp_path, config))
    assert card is not None
    assert (card.num_tokens, card.height, card.width, card.shortest_edge) == (576, 336, 336, 336)
    assert (card.image_token_id, card.resample) == (32000, 3)


def test_llava_interleave(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(SIGLIP))
    config = config_of(
        "siglip_vision_model", 384, 151646, 152000, vision_feature_select_strategy="full"
    )
    card = VisionCard.maybe_of(sight_card(tmp_path, config))
    assert card is not None
    assert (card.num_tokens, card.height, card.width, card.shortest_edge) == (729, 384, 384, None)


QWEN2_5_VL = {
    "min_pixels": 3136,
    "max_pixels": 12845056,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "image_processor_type": "Qwen2VLImageProcessor",
}
QWEN2_5_VL_CONFIG = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "image_token_id": 151655,
    "vocab_size": 151936,
    "vision_config": {"patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2},
}


def test_qwen2_5_vl(tmp_path: Path) -> None:
    """As the hub has it: its text is not in a part of its own."""
    assert sight_card(tmp_path, QWEN2_5_VL_CONFIG) is None  # without an image processor
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(QWEN2_5_VL))
    sight = sight_card(tmp_path, QWEN2_5_VL_CONFIG)
    assert sight is not None
    assert (sight.image_token_id, sight.resample, sight.has_axes) == (151655, 3, True)
    assert sight.size == AreaSize(28, 3136, 12845056)
    assert sight.size.fit(PixelSize(1080, 1920), 4096) == (1092, 1932)
    assert sight.size.fit(PixelSize(1080, 1920), 1000) == (644, 1176)
    assert VisionCard.maybe_of(sight) is None


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"patch_size": 16}, "patch_size=14, and the image processor patch_size=16"),
        ({"min_pixels": 0}, "min_pixels=0"),
        ({"max_pixels": 100}, "max_pixels=100 is not supported"),
        ({"do_resize": False}, "do_resize=False is not supported"),
        ({"resample": 9}, "resample=9 is not supported"),
    ],
)
def test_what_no_frontend_could_do_is_refused(
    tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(QWEN2_5_VL | change))
    with pytest.raises(ConfigError, match=sentence):
        sight_card(tmp_path, QWEN2_5_VL_CONFIG)


GEMMA3 = {
    "do_pan_and_scan": None,
    "do_resize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_processor_type": "Gemma3ImageProcessor",
    "image_seq_length": 256,
    "image_std": [0.5, 0.5, 0.5],
    "resample": 2,
    "size": {"height": 896, "width": 896},
}
GEMMA3_CONFIG = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "image_token_index": 262144,
    "mm_tokens_per_image": 256,
    "text_config": {"model_type": "gemma3_text"},
    "vision_config": {"image_size": 896, "patch_size": 14},
}


def test_gemma_3(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(GEMMA3))
    sight = sight_card(tmp_path, GEMMA3_CONFIG)
    assert sight is not None
    assert (sight.image_token_id, sight.resample, sight.is_mutual) == (262144, 2, True)
    assert sight.size == FixedSize(896, 896, 256)
    assert sight.image_text == "\n\n<start_of_image><image_soft_token><end_of_image>\n\n"
    assert VisionCard.maybe_of(sight) is None
    for change, sentence in (
        ({"do_pan_and_scan": True}, "do_pan_and_scan=True is not supported"),
        ({"size": {"height": 448, "width": 448}}, "reads images of 896"),
    ):
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(GEMMA3 | change))
        with pytest.raises(ConfigError, match=sentence):
            sight_card(tmp_path, GEMMA3_CONFIG)


def test_mistral_small_3_1(tmp_path: Path) -> None:
    """As the hub has it: rows of [IMG], each ending in a token of its own."""
    processor = {
        "image_processor_type": "PixtralImageProcessor",
        "patch_size": {"height": 14, "width": 14},
        "size": {"longest_edge": 1540},
    }
    config = {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "image_token_index": 10,
        "spatial_merge_size": 2,
        "text_config": {"vocab_size": 131072},
        "vision_config": {"patch_size": 14},
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
    with pytest.raises(ConfigError, match=r"no token '\[IMG_BREAK\]', which images need"):
        sight_card(tmp_path, config)
    added = [{"id": 12, "content": "[IMG_BREAK]"}, {"id": 13, "content": "[IMG_END]"}]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    sight = sight_card(tmp_path, config)
    assert sight is not None
    assert sight.size == EdgeSize(28, 1540)
    assert sight.image_ids(PixelSize(56, 84)) == [10, 10, 10, 12, 10, 10, 10, 13]
    for size, fitted in (
        ((1540, 770), (1540, 784)),
        ((3000, 1000), (1540, 532)),
        ((20, 30), (28, 56)),
        ((1, 200), (28, 224)),
    ):
        assert sight.size.fit(PixelSize(*size), 4000) == fitted
    assert sight.size.fit(PixelSize(1540, 770), 100) == (392, 196)
    with pytest.raises(BadImageSize, match="9 x 1801 pixels: one side may be 200 times"):
        sight.size.fit(PixelSize(1801, 9), 4000)


INTERNVL3 = {
    "crop_to_patches": False,
    "image_processor_type": "GotOcr2ImageProcessorFast",
    "max_patches": 12,
    "min_patches": 1,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
    "resample": 3,
    "size": {"height": 448, "width": 448},
}
INTERNVL3_CONFIG = {
    "architectures": ["InternVLForConditionalGeneration"],
    "downsample_ratio": 0.5,
    "image_seq_length": 256,
    "image_token_id": 151667,
    "text_config": {"vocab_size": 151674},
    "vision_config": {"image_size": [448, 448], "patch_size": [14, 14]},
    "vision_feature_select_strategy": "default",
}


def test_internvl_3(tmp_path: Path) -> None:
    """As the hub has it: its processor cuts into tiles whatever the file says."""
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps(INTERNVL3))
    sight = sight_card(tmp_path, INTERNVL3_CONFIG)
    assert sight is not None
    assert sight.size == TilesSize(448, 256, 1, 12)
    assert (sight.mark_text, sight.image_text) == ("<IMG_CONTEXT>", "<img><IMG_CONTEXT></img>")
    assert sight.size.fit(PixelSize(1080, 1920), 4096) == (9 * 448, 448)  # 2 x 4, and the whole
    assert sight.size.fit(PixelSize(1080, 1920), 2048) == (3 * 448, 448)
    assert VisionCard.maybe_of(sight) is None
    for change, sentence in (
        ({"image_seq_length": 64}, "32 x 32 patches does not become image_seq_length=64"),
        ({"vision_feature_select_strategy": "full"}, "strategy='full' is not supported"),
        ({"vision_config": {"image_size": 336}}, "reads tiles of 336"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            sight_card(tmp_path, INTERNVL3_CONFIG | change)
    for least, most in ((13, 12), (1, 257)):
        bounds = {"min_patches": least, "max_patches": most}
        file.write_text(json.dumps(INTERNVL3 | bounds))
        with pytest.raises(ConfigError, match=f"={least} with max_patches={most} is not supported"):
            sight_card(tmp_path, INTERNVL3_CONFIG)


PINPOINTS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
LLAVA_1_6_CONFIG = config_of(
    "clip_vision_model",
    336,
    32000,
    32064,
    architectures=["LlavaNextForConditionalGeneration"],
    image_grid_pinpoints=PINPOINTS,
    vision_feature_select_strategy="default",
)


def test_llava_1_6(tmp_path: Path) -> None:
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps(CLIP | {"do_pad": True, "image_grid_pinpoints": PINPOINTS}))
    sight = sight_card(tmp_path, LLAVA_1_6_CONFIG)
    assert sight is not None
    assert sight.size == AnyresSize(336, 24, tuple((each[0], each[1]) for each in PINPOINTS))
    assert sight.size.grid(PixelSize(1000, 1000)) == (1, 576 + 48 * 49)
    for change, sentence in (
        ({"image_grid_pinpoints": PINPOINTS[:2]}, "image processor differ in image_grid_pinpoints"),
        (
            {"vision_feature_select_strategy": "full"},
            "577 features of a tile, which are no",
        ),
    ):
        with pytest.raises(ConfigError, match=sentence):
            sight_card(tmp_path, LLAVA_1_6_CONFIG | change)
    odd = [[336, 500]]
    file.write_text(json.dumps(CLIP | {"image_grid_pinpoints": odd}))
    with pytest.raises(ConfigError, match=r"\[336, 500\] does not fill tiles of 336"):
        sight_card(tmp_path, LLAVA_1_6_CONFIG | {"image_grid_pinpoints": odd})


def test_llava_onevision(tmp_path: Path) -> None:
    """What its files leave to the classes is known."""
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(SIGLIP))
    config = config_of(
        "siglip_vision_model",
        384,
        151646,
        152000,
        architectures=["LlavaOnevisionForConditionalGeneration"],
    )
    sight = sight_card(tmp_path, config)
    assert sight is not None
    size = sight.size
    assert isinstance(size, AnyresSize)
    assert (size.tile, size.num_cells, len(size.resolutions), size.max_tiles) == (384, 27, 36, 9)
    with pytest.raises(ConfigError, match="vision_aspect_ratio='pad' is not supported"):
        sight_card(tmp_path, config | {"vision_aspect_ratio": "pad"})


GEMMA4 = {
    "do_normalize": False,
    "image_mean": [0.0, 0.0, 0.0],
    "image_processor_type": "Gemma4ImageProcessor",
    "image_std": [1.0, 1.0, 1.0],
    "max_soft_tokens": 280,
    "patch_size": 16,
    "pooling_kernel_size": 3,
    "resample": 3,
}
GEMMA4_CONFIG = {
    "architectures": ["Gemma4ForConditionalGeneration"],
    "image_token_id": 258880,
    "text_config": {"vocab_size": 262144, "use_bidirectional_attention": "vision"},
    "vision_config": {"patch_size": 16, "pooling_kernel_size": 3},
}


def test_gemma_4(tmp_path: Path) -> None:
    file = tmp_path / "processor_config.json"
    file.write_text(json.dumps({"image_processor": GEMMA4}))
    sight = sight_card(tmp_path, GEMMA4_CONFIG)
    assert sight is not None
    assert sight.size == BudgetSize(48, (70, 140, 280))
    assert (sight.image_token_id, sight.is_mutual, sight.std) == (258880, True, (1.0,) * 3)
    assert (sight.mark_text, sight.image_text) == ("<|image|>", "<|image><|image|><image|>")
    small = sight_card(tmp_path, GEMMA4_CONFIG | {"text_config": {"vocab_size": 262144}})
    assert small is not None
    assert not small.is_mutual
    unified = {"architectures": ["Gemma4UnifiedForConditionalGeneration"]}
    for config, change, sentence in (
        ({}, {"patch_size": 14}, "patch_size=16, and the image processor patch_size=14"),
        ({}, {"max_soft_tokens": 300}, "max_soft_tokens=300 is not supported"),
        ({"vision_config": {"position_embedding_size": 800}}, {}, "max_soft_tokens=280 is not"),
        (
            {"vision_config": {"mm_posemb_size": 279}, "model_type": "gemma4_unified"} | unified,
            {},
            "max_soft_tokens=280 is not",
        ),
    ):
        file.write_text(json.dumps({"image_processor": GEMMA4 | change}))
        with pytest.raises(ConfigError, match=sentence):
            sight_card(tmp_path, GEMMA4_CONFIG | config)


LLAMA4 = {"image_processor_type": "Llama4ImageProcessorFast", "max_patches": 4}
LLAMA4_CONFIG = {
    "architectures": ["Llama4ForConditionalGeneration"],
    "image_token_index": 2,
    "text_config": {"vocab_size": 202048},
    "vision_config": {"image_size": 336, "patch_size": 14, "pixel_shuffle_ratio": 0.5},
}
SMOLVLM = {
    "do_image_splitting": True,
    "do_pad": True,
    "image_processor_type": "SmolVLMImageProcessor",
    "max_image_size": {"longest_edge": 512},
    "size": {"longest_edge": 2048},
}
SMOLVLM_CONFIG = {
    "architectures": ["SmolVLMForConditionalGeneration"],
    "image_token_id": 2,
    "scale_factor": 4,
    "text_config": {"model_type": "llama", "vocab_size": 49280},
    "vision_config": {"image_size": 512, "patch_size": 16},
}


def test_llama_4_names_the_places_of_its_tiles(tmp_path: Path) -> None:
    """As Llama4Processor of transformers does."""
    write_marks(tmp_path)
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps(LLAMA4))
    sight = sight_card(tmp_path, LLAMA4_CONFIG)
    assert sight is not None
    assert sight.size == CanvasSize(336, 144, 4)
    assert (sight.mark_text, sight.image_text) == ("<|image|>", "<|patch|>")
    tile = [2] * 144
    assert sight.image_ids(PixelSize(336, 336)) == [5, 7, *tile, 6]
    rows = [*tile, 8, *tile, 9, *tile, 8, *tile, 9]
    assert sight.image_ids(PixelSize(672, 672)) == [5, *rows, 7, *tile, 6]
    for change, sentence in (
        ({"resize_to_max_canvas": True}, "resize_to_max_canvas=True with max_patches=4 is not"),
        ({"max_patches": 257}, "max_patches=257 is not supported"),
        ({"size": {"height": 448, "width": 448}}, "reads tiles of 336, and the image processor"),
    ):
        file.write_text(json.dumps(LLAMA4 | change))
        with pytest.raises(ConfigError, match=sentence):
            sight_card(tmp_path, LLAMA4_CONFIG)


def test_smolvlm_names_its_tiles(tmp_path: Path) -> None:
    """As get_image_prompt_string of transformers does: its last two newlines are one token."""
    write_marks(tmp_path)
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps(SMOLVLM))
    sight = sight_card(tmp_path, SMOLVLM_CONFIG)
    assert sight is not None
    assert sight.size == SplitSize(512, 64, 2048)
    tile = [2] * 64
    assert sight.image_ids(PixelSize(512, 512)) == [10, 11, *tile, 10]
    rows = [10, 15, *tile, 10, 16, *tile, 12, 10, 19, *tile, 10, 20, *tile]
    assert sight.image_ids(PixelSize(1024, 1024)) == [*rows, 13, 10, 11, *tile, 10]
    for change, sentence in (
        ({"do_image_splitting": False}, "do_image_splitting=False is not supported"),
        ({"size": {"longest_edge": 4097}}, "4097} with max_image_size={'longest_edge': 512} is"),
        ({"size": {"height": 512, "width": 512}}, "'width': 512} is not supported"),
        ({"max_image_size": {"longest_edge": 384}}, "tiles of 512 in patches of 16, merged by 4"),
    ):
        file.write_text(json.dumps(SMOLVLM | change))
        with pytest.raises(ConfigError, match=sentence):
            sight_card(tmp_path, SMOLVLM_CONFIG)


def test_other_models_take_no_images(tmp_path: Path) -> None:
    assert sight_card(tmp_path, {"architectures": ["LlamaForCausalLM"]}) is None
    assert sight_card(tmp_path, {}) is None
