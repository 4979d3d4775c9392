"""How much reasoning a chat asks for, and how many output tokens of its answer are that."""

from __future__ import annotations

from typing import Any, Literal

from frontend.models.chat_template import ChatTemplate
from frontend.surfaces.tools.answer_parser import AnswerParser
from frontend.text.text_stream import TextStream

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


def num_reasoning_tokens(parser: AnswerParser, stream: TextStream) -> int | None:
    """Output tokens up to the closing mark, marks included; None where that is no token.

    `parser` has read what was taken from the stream.
    """
    answer = stream.reply.answer
    assert answer is not None
    if not parser.has_thought:
        return 0
    if parser.is_thinking:
        return stream.position
    if answer.reasoning_end_id not in stream.token_ids:  # spelled in pieces
        return None
    return stream.token_ids.index(answer.reasoning_end_id) + 1


def effort_kwargs(effort: Effort | None, template: ChatTemplate) -> dict[str, Any]:
    """As a chat template knows it; empty where it has no word for it."""
    if effort is None:
        return {}
    words = {"reasoning_effort": effort, "enable_thinking": effort != "none"}
    return {name: word for name, word in words.items() if name in template.effort_names}
