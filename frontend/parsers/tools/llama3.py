"""Calls as Llama 3.1 and 4 write them, in JSON."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from frontend.parsers.calls.call_head import Head, ListEnd, NoCall, end_mark, json_calls
from frontend.parsers.calls.json_span import skip_space
from frontend.parsers.calls.marks import Marks
from frontend.parsers.calls.tool_parser import MarkRef
from frontend.parsers.tools.plain_json import PlainJson

PYTHON_TAG = "<|python_tag|>"


class Llama3(PlainJson):
    """`{"name": ..., "parameters": {...}}`, also behind `<|python_tag|>`."""

    name = "llama3"
    aliases: ClassVar[tuple[str, ...]] = ("llama3_json",)
    marks = Marks(PYTHON_TAG)
    no_call = r"/([ \t\r\n]*[^ \t\r\n{](.|\n)*)?/"
    argument_key = "parameters"

    def fits(self, template: str) -> bool:
        return "ipython" in template and '"parameters"' in template

    def at_start(self, text: str, at: int, names: Collection[str]) -> Head:
        at = skip_space(text, at)
        begin = self.marks.begin
        if text.startswith(begin, at):
            at = skip_space(text, at + len(begin))
        if at == len(text):
            return None
        head = json_calls(text, at, names)
        may_be_mark = isinstance(head, NoCall) and begin.startswith(text[at:])
        return None if may_be_mark else head

    def calls_rule(self, ref: MarkRef, *, is_single: bool) -> str:
        return "call" if is_single else 'call ("; " call)*'


class Llama4Json(Llama3):
    """The same, also between `<|python_start|>` and `<|python_end|>`."""

    name = "llama4_json"
    aliases = ()
    level = 3
    marks = Marks("<|python_start|>", "<|python_end|>")

    def fits(self, template: str) -> bool:
        return self.marks.begin in template and '"parameters"' in template

    def behind_call(
        self, text: str, at: int, names: Collection[str], *, in_list: bool
    ) -> Head | ListEnd:
        closed = end_mark(text, at, self.marks.end)
        if not isinstance(closed, NoCall):
            return closed
        return super().behind_call(text, at, names, in_list=in_list)
