"""Tiny random checkpoints of models that read images, with towers that say something, and the
image processors beside them.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from PIL import Image

from frontend.images.fitting import fit
from shared.protocol.sight_card import SightCard
from shared.protocol.tiled_sizes import CanvasSize
from tests.frontend.seeing_model import image_bytes
from tests.tiny_llava import Pixels
from tests.tiny_marks import write_marks
from tests.tiny_vision import save_tiny_reader

IMAGE_TOKEN_ID, VIDEO_TOKEN_ID = 2, 1  # as no random prompt has them
_QWEN_TOWER = {
    "depth": 3,
    "embed_dim": 16,
    "hidden_size": 48,
    "intermediate_size": 32,
    "out_hidden_size": 48,
    "num_heads": 2,
    "patch_size": 4,
    "fullatt_block_indexes": [1],
    "window_size": 16,
}
_QWEN_IDS = {
    "image_token_id": IMAGE_TOKEN_ID,
    "video_token_id": VIDEO_TOKEN_ID,
    "vision_start_token_id": 4,
}


class TinyEyes(NamedTuple):
    """A model of `tiny_vision.READERS`, what of it is another, and its image processor."""

    reader: str
    overrides: dict[str, Any]
    processor: str  # its class, in its module of transformers
    module: str
    values: dict[str, Any]
    text: dict[str, Any] = {}  # noqa: RUF012  # what of its text is another
    read: dict[str, Any] = {}  # noqa: RUF012  # values of one that makes what the model reads

    def make_processor(self, **values: Any) -> Any:
        import importlib

        if not self.module:
            return Llama4Tiles(self.values)
        module = importlib.import_module(f"transformers.models.{self.module}")
        return getattr(module, self.processor)(**self.values | values)


_QWEN3_TOWER = _QWEN_TOWER | {
    "hidden_size": 16,
    "deepstack_visual_indexes": [0, 2],
    "num_position_embeddings": 36,
}
_QWEN_PROCESSOR = ("Qwen2VLImageProcessorPil", "qwen2_vl.image_processing_pil_qwen2_vl")

_SIGLIP = {
    "model_type": "siglip_vision_model",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 4,
}

_GEMMA4 = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "patch_size": 2,
    "pooling_kernel_size": 2,
    "position_embedding_size": 280,
}
_LLAMA4 = {
    "hidden_size": 16,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 4,
    "vision_output_dim": 16,
    "projector_input_dim": 16,
    "projector_output_dim": 16,
}
_GEMMA4_PROCESSOR = {"patch_size": 2, "pooling_kernel_size": 2, "max_soft_tokens": 70}
_INTERN = _SIGLIP | {"model_type": "internvl_vision", "image_size": [16, 16], "patch_size": [4, 4]}
_RESOLUTIONS = [[8, 16], [16, 8], [16, 16], [8, 24], [24, 8]]

_PIXTRAL_IDS = {
    "vision_config": _SIGLIP | {"model_type": "pixtral"},
    "image_token_index": IMAGE_TOKEN_ID,
    "spatial_merge_size": 2,
}
_PIXTRAL = (
    "PixtralImageProcessorPil",
    "pixtral.image_processing_pil_pixtral",
    {"size": {"longest_edge": 48}, "patch_size": {"height": 8, "width": 8}},
)

# The text of the second goes through transformers.
MISTRALS = {
    name: TinyEyes(name, _PIXTRAL_IDS, *_PIXTRAL) for name in ("mistral3", "mistral3 ministral3")
}
EYES: dict[str, TinyEyes] = {
    "gemma3": TinyEyes(
        "gemma3",
        {
            "vision_config": _SIGLIP,
            "mm_tokens_per_image": 16,
            "image_token_index": IMAGE_TOKEN_ID,
        },
        "Gemma3ImageProcessorPil",
        "gemma3.image_processing_pil_gemma3",
        {"size": {"height": 32, "width": 32}},
        text={"sliding_window": 12},
    ),
    "gemma4": TinyEyes(
        "gemma4",
        {
            "vision_config": _GEMMA4 | {"use_clipped_linears": True, "standardize": True},
            "audio_config": {"hidden_size": 8, "num_hidden_layers": 1, "output_proj_dims": 8},
            "image_token_id": IMAGE_TOKEN_ID,
        },
        "Gemma4ImageProcessorPil",
        "gemma4.image_processing_pil_gemma4",
        _GEMMA4_PROCESSOR,
        text={
            "use_bidirectional_attention": "vision",
            "sliding_window": 12,
            "pad_token_id": 9,
            "num_hidden_layers": 3,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        },
    ),
    "gemma4_unified": TinyEyes(
        "gemma4_unified",
        {
            "vision_config": {
                "patch_size": 2,
                "pooling_kernel_size": 2,
                "mm_embed_dim": 16,
                "output_proj_dims": 16,
            },
            "image_token_id": IMAGE_TOKEN_ID,
        },
        "Gemma4ImageProcessorPil",  # its own needs torchvision, and makes patches of cells
        "gemma4.image_processing_pil_gemma4",
        _GEMMA4_PROCESSOR,
        text={"use_bidirectional_attention": "vision", "sliding_window": 12},
        read={"patch_size": 4, "pooling_kernel_size": 1},
    ),
    "internvl qwen2": TinyEyes(
        "internvl qwen2",
        {
            "vision_config": _INTERN,
            "image_token_id": IMAGE_TOKEN_ID,
            "image_seq_length": 4,
        },
        "GotOcr2ImageProcessorPil",
        "got_ocr2.image_processing_pil_got_ocr2",
        {"size": {"height": 16, "width": 16}, "max_patches": 4, "crop_to_patches": True},
    ),
    "llama4": TinyEyes(
        "llama4",
        {
            "vision_config": _LLAMA4,
            "image_token_index": IMAGE_TOKEN_ID,
        },
        "",
        "",
        {"size": {"height": 16, "width": 16}, "max_patches": 4},
        text={"no_rope_layers": [1, 0], "layer_types": ["chunked_attention", "full_attention"]},
    ),
    "llava_next": TinyEyes(
        "llava_next",
        {
            "vision_config": _SIGLIP | {"model_type": "clip_vision_model", "image_size": 8},
            "image_token_index": IMAGE_TOKEN_ID,
            "image_grid_pinpoints": _RESOLUTIONS,
        },
        "LlavaNextImageProcessorPil",
        "llava_next.image_processing_pil_llava_next",
        {
            "size": {"shortest_edge": 8},
            "crop_size": {"height": 8, "width": 8},
            "image_grid_pinpoints": _RESOLUTIONS,
        },
    ),
    "llava_onevision": TinyEyes(
        "llava_onevision",
        {
            "vision_config": _SIGLIP | {"image_size": 8},
            "image_token_index": IMAGE_TOKEN_ID,
            "image_grid_pinpoints": _RESOLUTIONS,
            "vision_aspect_ratio": "anyres_max_1",
        },
        "LlavaOnevisionImageProcessorPil",
        "llava_onevision.image_processing_pil_llava_onevision",
        {"size": {"height": 8, "width": 8}, "image_grid_pinpoints": _RESOLUTIONS},
    ),
    "mistral3": MISTRALS["mistral3"],
    "smolvlm": TinyEyes(
        "smolvlm",
        {
            "vision_config": _SIGLIP | {"model_type": "smolvlm_vision", "image_size": 16},
            "image_token_id": IMAGE_TOKEN_ID,
            "scale_factor": 2,
        },
        "SmolVLMImageProcessorPil",
        "smolvlm.image_processing_pil_smolvlm",
        {"size": {"longest_edge": 60}, "max_image_size": {"longest_edge": 16}},
    ),
    "qwen2_vl": TinyEyes(
        "qwen2_vl",
        {"vision_config": _QWEN_TOWER | {"hidden_size": 48}, **_QWEN_IDS},
        *_QWEN_PROCESSOR,
        {"patch_size": 4, "min_pixels": 64, "max_pixels": 64 * 40},
    ),
    "qwen2_5_vl": TinyEyes(
        "qwen2_5_vl",
        {"vision_config": _QWEN_TOWER | {"hidden_size": 16}, **_QWEN_IDS},
        *_QWEN_PROCESSOR,
        {"patch_size": 4, "min_pixels": 64, "max_pixels": 64 * 40},
    ),
    "qwen3_vl": TinyEyes(
        "qwen3_vl",
        {"vision_config": _QWEN3_TOWER, **_QWEN_IDS},
        *_QWEN_PROCESSOR,
        {"patch_size": 4, "min_pixels": 64, "max_pixels": 64 * 40},
    ),
    "qwen3_5": TinyEyes(
        "qwen3_5",
        {"vision_config": _QWEN3_TOWER, **_QWEN_IDS},
        *_QWEN_PROCESSOR,
        {"patch_size": 4, "min_pixels": 64, "max_pixels": 64 * 40},
    ),
}
# What they are made of is tested with the others.
LIKE_THEM = {
    name: EYES[kind]._replace(reader=name)
    for name, kind in (
        ("qwen3_vl_moe", "qwen3_vl"),
        ("qwen3_5_moe", "qwen3_5"),
        ("idefics3", "smolvlm"),
    )
}
ALL_EYES = EYES | LIKE_THEM | MISTRALS
# Together they have all that there is to see; the others are compared with transformers alone.
UNLIKE = ("gemma4", "llama4", "llava_onevision", "qwen3_5", "qwen3_vl")


def save_tiny_eyes(path: Path, name: str, **text_overrides: Any) -> Path:
    """One of ALL_EYES. What its tower makes is as large as embeddings: it must be seen."""
    from safetensors.torch import load_file, save_file

    eyes = ALL_EYES[name]
    save_tiny_reader(path, eyes.reader, eyes.text | text_overrides, **eyes.overrides)
    file = path / "model.safetensors"
    weights = load_file(file)
    torch.manual_seed(1)
    for stored, tensor in weights.items():
        if "language_model" not in stored and "lm_head" not in stored:
            weights[stored] = tensor + 0.2 * torch.randn(tensor.shape)
        if stored.endswith(("put_min", "put_max")):  # of linear layers that cut values off
            weights[stored] = torch.tensor(-1.0 if stored.endswith("min") else 1.0)
    save_file(weights, file, {"format": "pt"})
    eyes.make_processor().save_pretrained(path)
    write_marks(path)
    return path


class Llama4Tiles:
    """In the place of transformers' image processor, which needs torchvision: what that makes of
    many sizes, test_tiles.py knows.
    """

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def save_pretrained(self, path: Path) -> None:
        (path / "preprocessor_config.json").write_text(json.dumps(self._values))

    def __call__(self, images: Sequence[Any], return_tensors: str) -> dict[str, torch.Tensor]:
        side = self._values["size"]["height"]
        kind = CanvasSize(side, 4, self._values["max_patches"])
        sight = SightCard(IMAGE_TOKEN_ID, kind, 2, 1 / 255, (0.5,) * 3, (0.5,) * 3)
        arrays = [np.array(fit(image, sight, 10_000, 10**8).array) for image in images]
        tiles = torch.from_numpy(np.concatenate(arrays)).view(-1, side, side, 3).permute(0, 3, 1, 2)
        return {"pixel_values": ((tiles.bfloat16() * (1 / 255) - 0.5) / 0.5).float()}


class Clip(NamedTuple):
    """A video, as JPEGs."""

    frames: tuple[bytes, ...]
    fps: float

    @classmethod
    def of(cls, frames: Sequence[Pixels], fps: float) -> Self:
        return cls(tuple(image_bytes(Image.fromarray(each), "JPEG") for each in frames), fps)

    @property
    def images(self) -> list[Image.Image]:
        return [Image.open(io.BytesIO(each)).convert("RGB") for each in self.frames]


def their_patches(
    clip: Clip, processor: Any, *, has_stamps: bool
) -> tuple[torch.Tensor, list[int]]:
    """What the video processors of transformers make of one, by their own functions: the whole of
    them needs torchvision. Values of patches, and the grid.
    """
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import (
        Qwen3VLVideoProcessor,
    )
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import (
        smart_resize as fit_all,
    )

    images = clip.images
    width, height = images[0].size
    bounds = (processor.size["shortest_edge"], processor.size["longest_edge"])
    if has_stamps:
        size = fit_all(len(images), height, width, 2, 8, *bounds)
    else:
        size = smart_resize(height, width, 8, *bounds)
    frames = [np.array(each.resize(size[::-1], Image.Resampling.BICUBIC)) for each in images]
    values = torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2) / 255
    mean, std = (
        torch.tensor(each)[:, None, None] for each in (processor.image_mean, processor.image_std)
    )
    patchify: Any = Qwen3VLVideoProcessor.patchify
    patches, *grid = patchify(None, ((values - mean) / std)[None], 4, 2, 2)
    return patches[0], grid


class Reference:
    """transformers' own image processor and forward."""

    def __init__(self, path: Path, name: str) -> None:
        from transformers import AutoModelForImageTextToText

        self._processor = ALL_EYES[name].make_processor(**ALL_EYES[name].read)
        self._types = {"gemma3": "token_type_ids"}.get(name, "mm_token_type_ids")
        self._has_own_masks = name == "gemma4_unified"
        self._has_types = name.startswith(("gemma", "qwen"))
        self._has_stamps = name.startswith("qwen3")
        self._has_seconds = name == "qwen2_5_vl"
        auto_model: Any = AutoModelForImageTextToText
        self._model = auto_model.from_pretrained(path, dtype=torch.float32)
        if name == "llama4":  # whose forward asks its text for what that does not give
            text = self._model.language_model
            text.register_forward_hook(lambda _, __, output: setattr(output, "image_outputs", None))

    def logits(self, token_ids: Sequence[int], seen: Sequence[Pixels | Clip]) -> torch.Tensor:
        """[num_tokens, vocab_size]."""
        input_ids = torch.tensor([list(token_ids)])
        types = (input_ids == IMAGE_TOKEN_ID).int()
        given = [Image.fromarray(image) for image in seen if not isinstance(image, Clip)]
        pixels = dict(self._processor(given, return_tensors="pt")) if given else {}
        if clips := [clip for clip in seen if isinstance(clip, Clip)]:
            types += 2 * (input_ids == VIDEO_TOKEN_ID).int()
            pixels |= self._of_videos(clips)
        for each in ("num_crops", "num_patches", "num_soft_tokens_per_image"):
            pixels.pop(each, None)
        with torch.inference_mode():
            named: dict[str, Any] = {self._types: types} if self._has_types else {}
            if self._has_own_masks:  # which its forward leaves out where nobody gives them
                named["attention_mask"] = self._model.create_masks_for_generate(
                    self._model.config,
                    inputs_embeds=self._model.get_input_embeddings()(input_ids),
                    attention_mask=None,
                    cache=None,
                    position_ids=torch.arange(len(token_ids))[None],
                    mm_token_type_ids=types,
                )
            output = self._model(input_ids=input_ids, **named, **pixels)
        return torch.Tensor(output.logits[0])

    def _of_videos(self, clips: Sequence[Clip]) -> dict[str, torch.Tensor]:
        made = [their_patches(clip, self._processor, has_stamps=self._has_stamps) for clip in clips]
        seconds = torch.tensor([2 / clip.fps for clip in clips])
        return {
            "pixel_values_videos": torch.cat([patches for patches, _ in made]),
            "video_grid_thw": torch.tensor([grid for _, grid in made]),
        } | ({"second_per_grid_ts": seconds} if self._has_seconds else {})
