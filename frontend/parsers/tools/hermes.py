"""Calls as Hermes, Qwen 2.5 and Qwen 3 write them."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from frontend.parsers.calls.call_head import CallHead, Head, json_head
from frontend.parsers.calls.marks import Marks, MarkSpan
from frontend.parsers.calls.tool_parser import MarkRef, Tail, ToolParser

CALL_MARKS = Marks("<tool_call>", "</tool_call>")


class Hermes(ToolParser):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

    name = "hermes"
    aliases: ClassVar[tuple[str, ...]] = ("qwen", "qwen25")
    marks = CALL_MARKS
    goes_on = True

    def fits(self, template: str) -> bool:
        return self.marks.begin in template and "<arg_key>" not in template

    def behind_mark(self, text: str, at: int, names: Collection[str]) -> Head:
        return json_head(text, at, ())

    def tail(self, head: CallHead) -> Tail | None:
        return MarkSpan(self.marks.end, self.marks.begin)

    def calls_rule(self, ref: MarkRef, *, is_single: bool) -> str:
        one = f'"\\n" call "\\n" {ref(self.marks.end)}'
        return one if is_single else f'{one} ("\\n" {ref(self.marks.begin)} {one})*'
