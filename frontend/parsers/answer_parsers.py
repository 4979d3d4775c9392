"""The parsers that the format of an answer names."""

from __future__ import annotations

from typing import NamedTuple, Self

from frontend.parsers.calls.tool_parser import ToolParser
from frontend.parsers.reasoning import REASONING_PARSERS, ReasoningParser
from frontend.parsers.tool_parsers import TOOL_PARSERS
from shared.protocol.reply import AnswerFormat


class AnswerParsers(NamedTuple):
    """None where there is nothing to be told from content."""

    tools: ToolParser | None
    reasoning: ReasoningParser | None

    @classmethod
    def of(cls, answer: AnswerFormat) -> Self:
        """Raises MalformedMessage for a name that only a newer build has."""
        return cls(
            None if answer.tools is None else TOOL_PARSERS.stored(answer.tools),
            None if answer.reasoning is None else REASONING_PARSERS.stored(answer.reasoning),
        )

    @property
    def has_channels(self) -> bool:
        return any(parser is not None and parser.has_channels for parser in self)

    @property
    def needed_level(self) -> int:
        """Frontends that know less cannot read the answer."""
        return max((parser.level for parser in self if parser is not None), default=1)
