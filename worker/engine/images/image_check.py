"""Whether a request's images are what the model reads: asked before they are in a step."""

from __future__ import annotations

from collections.abc import Sequence

from shared.protocol.model_cards import VisionCard
from worker.engine_link.engine_messages import RunImage


def image_error(
    images: Sequence[RunImage], num_prompt_tokens: int, vision: VisionCard | None
) -> str | None:
    """What is wrong with them; None when nothing is."""
    if not images:
        return None
    if vision is None:
        return "the model takes no images"
    num_bytes = 3 * vision.height * vision.width
    end = 0
    for idx, image in enumerate(images):
        if image.start < end or image.start + image.num_tokens > num_prompt_tokens:
            return f"image {idx} stands at token {image.start}, where it cannot"
        if image.num_tokens != vision.num_tokens:
            return f"image {idx} has {image.num_tokens} tokens, of the model {vision.num_tokens}"
        if len(image.pixels) != num_bytes:
            return f"image {idx} has {len(image.pixels)} bytes of pixels, the model {num_bytes}"
        end = image.start + image.num_tokens
    return None
