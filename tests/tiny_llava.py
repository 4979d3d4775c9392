"""A small LLaVA with random weights: images of 24 x 24, which take 36 tokens each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.tiny_decoder import tiny_decoder_config

IMAGE_SIZE = 24
NUM_TOKENS = 36
IMAGE_TOKEN_ID = 2

Pixels = npt.NDArray[np.uint8]  # [height, width, 3]

PROCESSOR = {
    "crop_size": {"height": IMAGE_SIZE, "width": IMAGE_SIZE},
    "size": {"shortest_edge": IMAGE_SIZE},
}


def save_tiny_llava(path: Path, *, tower: str = "clip_vision_model", **overrides: Any) -> Path:
    """Weights, config.json and the image processor's files."""
    import torch
    from transformers import AutoModelForImageTextToText, LlavaConfig
    from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil

    text = {"model_type": "llama"} | tiny_decoder_config()
    vision = {
        "model_type": tower,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": IMAGE_SIZE,
        "patch_size": 4,
        "projection_dim": 32,
    }
    values = {"vision_feature_layer": -1} | overrides
    config = LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=IMAGE_TOKEN_ID, **values
    )
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    with torch.no_grad():  # as large as the embeddings of tokens: they must be seen
        for parameter in model.model.vision_tower.parameters():
            parameter += 0.2 * torch.randn(parameter.shape)
        for parameter in model.model.multi_modal_projector.parameters():
            parameter += 0.2 * torch.randn(parameter.shape)
    model.save_pretrained(path)
    LlavaImageProcessorPil(**PROCESSOR).save_pretrained(path)
    return path


def random_pixels(seed: int, height: int = IMAGE_SIZE, width: int = IMAGE_SIZE) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
