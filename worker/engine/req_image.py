"""An image in a prompt, as the engine holds it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from worker.engine_messages import RunImage

_START_BYTES = 4


@dataclass(slots=True)
class ReqImage:
    """Stands in the place of the prompt's tokens [start, end).

    `features` are there between the first and the last prefill chunk that has tokens of it.
    """

    start: int
    end: int
    digest: bytes
    pixels: bytes  # [height, width, 3] uint8
    features: torch.Tensor | None = None  # [end - start, hidden_size]

    @classmethod
    def of(cls, image: RunImage) -> ReqImage:
        return cls(image.start, image.start + image.num_tokens, image.digest, image.pixels)

    @property
    def page_mark(self) -> bytes:
        """What the key of a page with tokens of it ends with: where it begins, and what it is."""
        return self.start.to_bytes(_START_BYTES, "little") + self.digest
