"""Calls in JSON alone, for models whose templates know no form of their own."""

from __future__ import annotations

from collections.abc import Collection

from frontend.parsers.calls.call_head import Head, ListEnd, json_calls, next_json_call
from frontend.parsers.calls.json_span import skip_space
from frontend.parsers.calls.marks import Marks
from frontend.parsers.calls.tool_parser import MarkRef, ToolParser

# What templates hold whose models write calls in another form, also in one that nobody reads here.
_OTHER_CALLS = (
    "<|channel|>",
    "tool_calls_section_begin",
    "tool\u2581calls\u2581begin",
    "<tool_call>",
    "<tool_calls>",
    ":tool_call>",
    "<start_function_call>",
    "<|action_start|>",
    "\uff5cDSML\uff5c",
)


class PlainJson(ToolParser):
    """The whole text is `{"name": ..., "arguments": {...}}`, or a list of such objects."""

    name = "json"
    marks = Marks("")
    no_call = r"/([ \t\r\n]*[^ \t\r\n{\[](.|\n)*)?/"

    def fits(self, template: str) -> bool:
        return not any(mark in template for mark in _OTHER_CALLS)

    def at_start(self, text: str, at: int, names: Collection[str]) -> Head:
        at = skip_space(text, at)
        return None if at == len(text) else json_calls(text, at, names)

    def behind_mark(self, text: str, at: int, names: Collection[str]) -> Head:
        return json_calls(text, at, names)

    def behind_call(
        self, text: str, at: int, names: Collection[str], *, in_list: bool
    ) -> Head | ListEnd:
        if in_list and text[at] == "]":
            return ListEnd(at + 1)
        return next_json_call(text, at, names, in_list=in_list)

    def calls_rule(self, ref: MarkRef, *, is_single: bool) -> str:
        return "call" if is_single else 'call | "[" call (", " call)* "]"'
