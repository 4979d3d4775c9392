"""Calls as Phi 4 mini, Granite 3 and Nemotron 2 write them: a list in JSON behind a mark."""

from __future__ import annotations

import json
from collections.abc import Collection

from frontend.parsers.calls.call_head import Head, json_calls, next_json_call
from frontend.parsers.calls.marks import Marks
from frontend.parsers.calls.tool_parser import Declaration, ListedCalls, MarkRef, Message

_CALLS = "<|tool_call|>"


class MarkedList(ListedCalls):
    """A mark, and the list."""

    level = 3

    def behind_mark(self, text: str, at: int, names: Collection[str]) -> Head:
        return json_calls(text, at, ())

    def next_in_list(self, text: str, at: int, names: Collection[str]) -> Head:
        return next_json_call(text, at, names, in_list=True)


class ClosedList(MarkedList):
    """The same with a closing mark."""

    @property
    def example(self) -> str:
        return f'{self.marks.begin}[{{"name": "<name>", "arguments": {{...}}}}]{self.marks.end}'

    def calls_rule(self, ref: MarkRef, *, is_single: bool) -> str:
        return f"{super().calls_rule(ref, is_single=is_single)} {ref(self.marks.end)}"


class Granite(MarkedList):
    """`<|tool_call|>[{"name": ..., "arguments": {...}}]`."""

    name = "granite"
    marks = Marks(_CALLS)

    def fits(self, template: str) -> bool:
        return _CALLS in template

    def messages(self, messages: list[Message], template: str) -> list[Message]:
        return _with_all_calls(messages, template, self.marks)


class Phi4Mini(ClosedList):
    """`<|tool_call|>[{"name": ..., "arguments": {...}}]<|/tool_call|>`."""

    name = "phi4_mini"
    marks = Marks(_CALLS, "<|/tool_call|>")

    def fits(self, template: str) -> bool:
        return "<|/tool|>" in template

    def messages(self, messages: list[Message], template: str) -> list[Message]:
        return _with_all_calls(messages, template, self.marks)

    def with_tools(
        self, messages: list[Message], tools: list[Declaration], template: str
    ) -> list[Message]:
        """Its own template takes them, as a text, of the system message."""
        if "message['tools']" not in template or not tools:
            return messages
        told = json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
        if messages[0]["role"] == "system":
            return [{**messages[0], "tools": told}, *messages[1:]]
        return [{"role": "system", "content": "", "tools": told}, *messages]


class Nemotron(ClosedList):
    """`<TOOLCALL>[{"name": ..., "arguments": {...}}]</TOOLCALL>`."""

    name = "nemotron"
    level = 4
    marks = Marks("<TOOLCALL>", "</TOOLCALL>")

    def fits(self, template: str) -> bool:
        return self.marks.begin in template


class Functools(MarkedList):
    """`functools[{"name": ..., "arguments": {...}}]`, as other templates ask Phi 4 mini for."""

    name = "functools"
    aliases = ("phi4_mini_json",)
    marks = Marks("functools")

    def fits(self, template: str) -> bool:
        return "functools[" in template


def _with_all_calls(messages: list[Message], template: str, marks: Marks) -> list[Message]:
    """Most of these templates know calls and results by roles or not at all."""
    if "tool_calls" in template:
        return messages
    return [_with_calls(message, marks) for message in messages]


def _with_calls(message: Message, marks: Marks) -> Message:
    """A message whose calls, or whose result, stand in its content."""
    if message["role"] == "tool":
        return {**message, "role": "tool_response"}
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    if not calls:
        return message
    told = [{"name": each["name"], "arguments": each.get("arguments", {})} for each in calls]
    text = f"{marks.begin}{json.dumps(told, ensure_ascii=False)}{marks.end}"
    return {**message, "content": f"{message.get('content') or ''}{text}"}
