"""Content of messages that has images, videos and audio between its texts.

Until the chat template sees it, it is one string, with a mark for each of them and between any two
parts: whatever is done to texts of messages is done to it as well.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Sequence
from typing import Any

# Private use, as no text has them. A text that does is refused when images are counted.
_BETWEEN = "\ue000next-part\ue001"


class Seen(enum.Enum):
    """A part that is no text."""

    IMAGE = "image"
    VIDEO = "video"
    AUDIO = "audio"

    @property
    def mark(self) -> str:
        """What stands for it."""
        return f"\ue000{self.value}\ue001"


_MARKS = re.compile(f"({'|'.join(each.mark for each in Seen)})")


def joined(parts: Sequence[str | Seen]) -> str:
    """The text of parts in their order. Texts alone stand one a line."""
    texts = [part if isinstance(part, str) else part.mark for part in parts]
    between = _BETWEEN if any(isinstance(part, Seen) for part in parts) else "\n"
    return between.join(texts)


def with_parts(message: dict[str, Any]) -> dict[str, Any]:
    """The message as templates of models that see or hear expect it: its content is a list."""
    parts = [part for piece in message["content"].split(_BETWEEN) for part in _parts(piece)]
    return {**message, "content": parts}


def _parts(piece: str) -> Iterator[dict[str, str]]:
    """Also of what has had words put before it, or behind."""
    kinds = {each.mark: each.value for each in Seen}
    texts = _MARKS.split(piece)
    for text in texts:
        if text in kinds:
            kind = kinds[text]
            # Templates look for a key of the same name, too.
            yield {"type": kind, "audio": ""} if kind == "audio" else {"type": kind}
        elif text or len(texts) == 1:
            yield {"type": "text", "text": text}
