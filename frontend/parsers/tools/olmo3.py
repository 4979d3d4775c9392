"""Calls as Olmo 3 writes them: in Python, a line each, between two marks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from frontend.parsers.calls.call_head import Head, ListEnd, NoCall, end_mark
from frontend.parsers.calls.marks import Marks
from frontend.parsers.calls.python_arguments import PythonArguments
from frontend.parsers.calls.tool_parser import (
    ArgumentReader,
    CallableTool,
    MarkRef,
    ToolParser,
)
from frontend.parsers.tools.pythonic import python_head, python_rules
from shared.protocol.reply import ParamKind


class Olmo3(ToolParser):
    """`<function_calls>`, `name(a=1, b="x")` line by line, `</function_calls>`."""

    name = "olmo3"
    level = 4
    marks = Marks("<function_calls>", "</function_calls>")

    @property
    def example(self) -> str:
        return f"{self.marks.begin}<name>(<parameter>=<value>, ...){self.marks.end}"

    def fits(self, template: str) -> bool:
        return self.marks.begin in template and "tool_calls" in template

    def behind_mark(self, text: str, at: int, names: Collection[str]) -> Head:
        return python_head(text, at, ())

    def arguments(self, kinds: Mapping[str, ParamKind]) -> ArgumentReader:
        return PythonArguments()

    def behind_call(
        self, text: str, at: int, names: Collection[str], *, in_list: bool
    ) -> Head | ListEnd:
        if not in_list:
            return NoCall()
        end = end_mark(text, at, self.marks.end)
        return python_head(text, at, ()) if isinstance(end, NoCall) else end

    def calls_rule(self, ref: MarkRef, *, is_single: bool) -> str:
        more = "" if is_single else ' ("\\n" call)*'
        return f"call{more} {ref(self.marks.end)}"

    def call_rules(self, i: int, tool: CallableTool, ref: MarkRef) -> Iterator[str]:
        return python_rules(i, tool)
