"""Calls one behind the other, between two marks that hold all of them."""

from __future__ import annotations

import abc
from collections.abc import Collection

from frontend.parsers.calls.call_head import Head, ListEnd, NoCall
from frontend.parsers.calls.tool_parser import ToolParser


class SectionedCalls(ToolParser):
    """A form whose `marks` stand before the first call and behind the last one."""

    @abc.abstractmethod
    def head(self, text: str, at: int) -> Head:
        """The head of a call that begins here; None while that is open."""

    def behind_mark(self, text: str, at: int, names: Collection[str]) -> Head:
        return self.head(text, at)

    def behind_call(
        self, text: str, at: int, names: Collection[str], *, in_list: bool
    ) -> Head | ListEnd:
        if not in_list:
            return NoCall()
        if text.startswith(self.marks.end, at):
            return ListEnd(at + len(self.marks.end))
        return None if self.marks.end.startswith(text[at:]) else self.head(text, at)
