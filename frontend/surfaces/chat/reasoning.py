"""How much reasoning a chat asks for, and how many output tokens of its answer are that."""

from __future__ import annotations

import json
from typing import Any

from frontend.models.chat_template import ChatTemplate
from frontend.surfaces.tools.answer_parser import AnswerParser
from frontend.text.text_stream import TextStream
from shared.errors import InvalidRequest

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


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


def effort_kwargs(effort: Any, template: ChatTemplate, param: str) -> dict[str, Any]:
    """`reasoning_effort` of chats, `reasoning.effort` of responses, as a chat template knows it.

    Empty where the template has no word for it. Raises InvalidRequest.
    """
    if effort is None:
        return {}
    if effort not in EFFORTS:
        raise InvalidRequest(
            f"'{param}' is {json.dumps(effort)[:100]}, must be one of {', '.join(EFFORTS)}",
            param=param,
        )
    words = {"reasoning_effort": effort, "enable_thinking": effort != "none"}
    return {name: word for name, word in words.items() if name in template.effort_names}
