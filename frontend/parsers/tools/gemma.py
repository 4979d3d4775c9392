"""Calls as FunctionGemma and Gemma 4 write them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import ClassVar

from frontend.parsers.calls.braced_arguments import BracedArguments, BracedRules
from frontend.parsers.calls.call_head import CallHead, Head, NoCall, name_end
from frontend.parsers.calls.json_span import skip_space
from frontend.parsers.calls.marks import Marks, MarkSpan
from frontend.parsers.calls.tool_parser import (
    ArgumentReader,
    CallableTool,
    MarkRef,
    Message,
    Tail,
    ToolParser,
)
from shared.protocol.reply import ParamKind

_CALL = "call:"


class FunctionGemma(ToolParser):
    """`call:name{a:<escape>text<escape>,b:1}` between marks. Gemma 3 itself has no form."""

    name = "functiongemma"
    level = 3
    marks = Marks("<start_function_call>", "<end_function_call>")
    more_marks = ("<escape>",)
    goes_on = True
    quote: ClassVar[str] = "<escape>"  # before and behind texts

    @property
    def example(self) -> str:
        return f"{self.marks.begin}{_CALL}<name>{{<parameter>:<value>}}{self.marks.end}"

    def fits(self, template: str) -> bool:
        return self.marks.begin in template

    def messages(self, messages: list[Message], template: str) -> list[Message]:
        """Results name the function: its templates know no ids."""
        names = {
            call.get("id"): call["function"]["name"]
            for message in messages
            for call in message.get("tool_calls") or ()
        }
        return [
            {**message, "name": names[message["tool_call_id"]]}
            if message["role"] == "tool" and message.get("tool_call_id") in names
            else message
            for message in messages
        ]

    def behind_mark(self, text: str, at: int, names: Collection[str]) -> Head:
        if not text.startswith(_CALL, at):
            return None if _CALL.startswith(text[at:]) else NoCall()
        begin = skip_space(text, at + len(_CALL))
        end = name_end(text, begin)
        brace = skip_space(text, end)
        if brace == len(text):
            return None
        if end == begin or text[brace] != "{":
            return NoCall()
        return CallHead(text[begin:end], brace + 1, None, in_object=False)

    def arguments(self, kinds: Mapping[str, ParamKind]) -> ArgumentReader:
        return BracedArguments(self.quote)

    def tail(self, head: CallHead) -> Tail | None:
        return MarkSpan(self.marks.end, self.marks.begin)

    def calls_rule(self, ref: MarkRef, *, is_single: bool) -> str:
        one = f"call {ref(self.marks.end)}"
        return one if is_single else f"{one} ({ref(self.marks.begin)} {one})*"

    def call_rules(self, i: int, tool: CallableTool, ref: MarkRef) -> Iterator[str]:
        yield f"call_{i}: {json.dumps(_CALL + tool.name)} arguments_{i}"
        yield from BracedRules(self.quote, ref).arguments(f"arguments_{i}", tool)


class Gemma4(FunctionGemma):
    """The same, with `<|"|>` before and behind texts."""

    name = "gemma4"
    marks = Marks("<|tool_call>", "<tool_call|>")
    more_marks = ('<|"|>',)
    quote = '<|"|>'
