"""One prompt of the load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text or a chat, and how many tokens are asked for."""

    text: str
    output_len: int
    messages: tuple[dict[str, Any], ...] = ()  # in place of the text
