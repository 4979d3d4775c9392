"""The state machine that reads answers of a format."""

from __future__ import annotations

from frontend.parsers.answer_parsers import AnswerParsers
from frontend.surfaces.tools.answer_parser import AnswerParser
from frontend.surfaces.tools.channel_answer import ChannelAnswer
from frontend.surfaces.tools.marked_answer import MarkedAnswer
from shared.protocol.reply import AnswerFormat


def answer_parser(answer: AnswerFormat, *, num_emitted: int = 0) -> AnswerParser:
    """Raises MalformedMessage for parsers that only a newer build has."""
    if AnswerParsers.of(answer).has_channels:
        return ChannelAnswer(answer, num_emitted=num_emitted)
    return MarkedAnswer(answer, num_emitted=num_emitted)
