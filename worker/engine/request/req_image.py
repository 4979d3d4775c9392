"""An image in a prompt, as the engine holds it."""

from __future__ import annotations

from dataclasses import dataclass

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
