"""A model that takes images, without weights: an image token, a template of parts, a card."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from PIL import Image
from tokenizers import AddedToken

from shared.checkpoint.tokenizer_bundle import TokenizerBundle
from shared.protocol.model_cards import ModelCard, VisionCard
from tests.frontend.tiny_model import VOCAB_SIZE, make_bundle, make_card, make_tokenizer

IMAGE_TOKEN_ID = VOCAB_SIZE
NUM_TOKENS = 6
SIZE = 24

VISION = VisionCard(
    image_token_id=IMAGE_TOKEN_ID,
    num_tokens=NUM_TOKENS,
    height=SIZE,
    width=SIZE,
    shortest_edge=SIZE,
    resample=3,
    rescale_factor=1 / 255,
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
)

# Of the kind that reads lists of parts and no strings, as LLaVA's does.
PARTS_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_seeing_bundle() -> TokenizerBundle:
    bundle = make_bundle(PARTS_TEMPLATE)
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens([AddedToken("<image>", special=True)])
    return TokenizerBundle(bundle.files | {"tokenizer.json": tokenizer.to_str().encode()})


def make_seeing_card(bundle: TokenizerBundle, name: str = "tiny", **changes: Any) -> ModelCard:
    values: dict[str, Any] = {"vocab_size": VOCAB_SIZE + 1, "vision": VISION}
    return make_card(bundle, name, **(values | changes))


def make_image(seed: int = 1, width: int = 30, height: int = 20, mode: str = "RGB") -> Image.Image:
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 4), np.uint8)
    return Image.fromarray(values, "RGBA").convert(mode)


def image_bytes(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def data_url(data: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def image_part(url: str, **options: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **options}}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
