"""Reasoning as Granite 3.2 sets it apart: in words."""

from __future__ import annotations

from frontend.parsers.reasoning.reasoning_parser import ReasoningParser


class Granite(ReasoningParser):
    """`Here is my thought process:` and `Here is my response:`, which it may shorten.

    Only an operator chooses it: its templates have the words also where a model shall not think.
    """

    name = "granite"
    level = 3
    begins = ("Here is my thought process:", "Here's my thought process:")
    ends = ("Here is my response:", "Here's my response:")

    def fits(self, template: str) -> bool:
        return False
