"""An image in a prompt, as the engine holds it, and whether it is what the model reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shared.protocol.model_cards import VisionCard
from worker.engine_link.engine_messages import RunImage

_START_BYTES = 4


@dataclass(slots=True, weakref_slot=True, eq=False)
class ReqImage:
    """Stands in the place of the prompt's tokens [start, end)."""

    start: int
    end: int
    digest: bytes
    pixels: bytes  # [height, width, 3] uint8
    # Between the first and the last prefill chunk that has tokens of it: the encoder keeps what the
    # vision tower made of it.
    is_encoded: bool = False

    @classmethod
    def of(cls, image: RunImage) -> ReqImage:
        return cls(image.start, image.start + image.num_tokens, image.digest, image.pixels)

    @property
    def page_mark(self) -> bytes:
        """What the key of a page with tokens of it ends with: where it begins, and what it is."""
        return self.start.to_bytes(_START_BYTES, "little") + self.digest


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
