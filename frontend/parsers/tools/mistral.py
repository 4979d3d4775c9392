"""Calls as Mistral's models write them: in a list, or by name."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator
from typing import Any

from frontend.parsers.calls.call_head import (
    CallHead,
    Head,
    NoCall,
    json_calls,
    name_end,
    next_json_call,
)
from frontend.parsers.calls.json_span import skip_space
from frontend.parsers.calls.lark_json import json_rule
from frontend.parsers.calls.marks import Marks
from frontend.parsers.calls.tool_parser import CallableTool, ListedCalls, MarkRef, Message

ARGS = "[ARGS]"
CALL_ID = "[CALL_ID]"
_ID_LEN = 9  # their chat templates refuse any other
_TEMPLATE_ID = re.compile(r"[A-Za-z0-9]{9}")
_WRITTEN_ID = re.compile(r"[A-Za-z0-9_-]*")


class Mistral(ListedCalls):
    """`[TOOL_CALLS] [{"name": ..., "arguments": {...}}]`."""

    name = "mistral"
    marks = Marks("[TOOL_CALLS]")
    more_marks = (ARGS, CALL_ID)
    call_id_len = _ID_LEN

    def fits(self, template: str) -> bool:
        return self.marks.begin in template

    def messages(self, messages: list[Message], template: str) -> list[Message]:
        return with_short_ids(messages)

    def behind_mark(self, text: str, at: int, names: Collection[str]) -> Head:
        return json_calls(text, at, ()) if text[at] in "[{" else _named_head(text, at)

    def next_in_list(self, text: str, at: int, names: Collection[str]) -> Head:
        return next_json_call(text, at, names, in_list=True)


class MistralArgs(Mistral):
    """`[TOOL_CALLS]name[ARGS]{...}`."""

    name = "mistral-args"

    def fits(self, template: str) -> bool:
        return super().fits(template) and ARGS in template

    def calls_rule(self, ref: MarkRef, *, is_single: bool) -> str:
        return "call" if is_single else f"call ({ref(self.marks.begin)} call)*"

    def call_rules(self, i: int, tool: CallableTool, ref: MarkRef) -> Iterator[str]:
        yield f"call_{i}: {json.dumps(tool.name)} {ref(ARGS)} arguments_{i}"
        yield f"arguments_{i}: %json {json_rule(tool.schema())}"


class MistralCallId(MistralArgs):
    """`[TOOL_CALLS]name[CALL_ID]id[ARGS]{...}`: Mistral Small 3.1 and 3.2."""

    name = "mistral-call-id"
    level = 3

    def fits(self, template: str) -> bool:
        return super().fits(template) and CALL_ID in template

    def call_rules(self, i: int, tool: CallableTool, ref: MarkRef) -> Iterator[str]:
        head = f"{json.dumps(tool.name)} {ref(CALL_ID)} /[A-Za-z0-9]{{{_ID_LEN}}}/"
        yield f"call_{i}: {head} {ref(ARGS)} arguments_{i}"
        yield f"arguments_{i}: %json {json_rule(tool.schema())}"


def _named_head(text: str, at: int) -> Head:
    """The head of `name{`, `name[ARGS]{` or `name[CALL_ID]id[ARGS]{`; None while that is open."""
    end = name_end(text, at)
    name, at = text[at:end], end
    if at >= len(text):
        return None
    if not name:
        return NoCall()
    for mark in (CALL_ID, ARGS):
        if mark.startswith(text[at : at + len(mark)]):
            if len(text) < at + len(mark):
                return None
            at += len(mark)
            if mark == CALL_ID:
                match = _WRITTEN_ID.match(text, at)
                at = at if match is None else match.end()
    at = skip_space(text, at)
    if at >= len(text):
        return None
    return CallHead(name, at, None, in_object=False) if text[at] == "{" else NoCall()


def with_short_ids(messages: list[Message]) -> list[Message]:
    """Mistral's templates take call ids of nine letters and digits only."""
    return [
        {
            **message,
            **({"tool_call_id": _short_id(message["tool_call_id"])} if _has_id(message) else {}),
            **({"tool_calls": [_shortened(call) for call in calls]} if calls else {}),
        }
        for message in messages
        for calls in [message.get("tool_calls")]
    ]


def _has_id(message: Message) -> bool:
    return isinstance(message.get("tool_call_id"), str)


def _shortened(call: dict[str, Any]) -> dict[str, Any]:
    return {**call, "id": _short_id(str(call.get("id", "")))}


def _short_id(call_id: str) -> str:
    if _TEMPLATE_ID.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:_ID_LEN]
