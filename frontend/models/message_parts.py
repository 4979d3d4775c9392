"""Content of messages that has images between its texts.

Until the chat template sees it, it is one string, with a mark for each image and between any two
parts: whatever is done to texts of messages is done to it as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# Private use, as no text has them. A text that does is refused when images are counted.
_BETWEEN = "\ue000next-part\ue001"
_IMAGE = "\ue000image\ue001"


def joined(texts: list[str | None]) -> str:
    """The text of parts in their order; None is an image. Texts alone stand one a line."""
    if None not in texts:
        return "\n".join(text for text in texts if text is not None)
    return _BETWEEN.join(_IMAGE if text is None else text for text in texts)


def with_parts(message: dict[str, Any]) -> dict[str, Any]:
    """The message as templates of models that see expect it: its content is a list."""
    parts = [part for piece in message["content"].split(_BETWEEN) for part in _parts(piece)]
    return {**message, "content": parts}


def _parts(piece: str) -> Iterator[dict[str, str]]:
    """Also of an image in whose place words have been put before it, or behind."""
    if _IMAGE not in piece:
        yield {"type": "text", "text": piece}
        return
    for idx, text in enumerate(piece.split(_IMAGE)):
        if idx:
            yield {"type": "image"}
        if text:
            yield {"type": "text", "text": text}
