"""Calls as Llama 3.1 writes them."""

from __future__ import annotations

from collections.abc import Collection

from frontend.parsers.calls.call_head import Head, NoCall, json_calls
from frontend.parsers.calls.json_span import skip_space
from frontend.parsers.calls.marks import Marks
from frontend.parsers.calls.tool_parser import MarkRef
from frontend.parsers.tools.plain_json import PlainJson

PYTHON_TAG = "<|python_tag|>"


class Llama3(PlainJson):
    """`{"name": ..., "parameters": {...}}`, also behind `<|python_tag|>`."""

    name = "llama3"
    aliases = ("llama3_json",)
    marks = Marks(PYTHON_TAG)
    no_call = r"/([ \t\r\n]*[^ \t\r\n{](.|\n)*)?/"
    argument_key = "parameters"

    def fits(self, template: str) -> bool:
        return "ipython" in template and '"parameters"' in template

    def at_start(self, text: str, at: int, names: Collection[str]) -> Head:
        at = skip_space(text, at)
        if text.startswith(PYTHON_TAG, at):
            at = skip_space(text, at + len(PYTHON_TAG))
        if at == len(text):
            return None
        head = json_calls(text, at, names)
        may_be_mark = isinstance(head, NoCall) and PYTHON_TAG.startswith(text[at:])
        return None if may_be_mark else head

    def calls_rule(self, ref: MarkRef, *, is_single: bool) -> str:
        return "call" if is_single else 'call ("; " call)*'
