"""How many output tokens of an answer are reasoning."""

from __future__ import annotations

from frontend.surfaces.tools.answer_parser import AnswerParser
from frontend.text.text_stream import TextStream


def num_reasoning_tokens(parser: AnswerParser, stream: TextStream) -> int | None:
    """All up to the closing mark, marks included; None where that is no token.

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
