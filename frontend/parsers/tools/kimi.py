"""Calls as Kimi K2 writes them."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator

from frontend.parsers.calls.call_head import CallHead, Head, NoCall, name_end
from frontend.parsers.calls.json_span import skip_space
from frontend.parsers.calls.lark_json import json_rule
from frontend.parsers.calls.marks import Marks, MarkSpan
from frontend.parsers.calls.sectioned_calls import SectionedCalls
from frontend.parsers.calls.tool_parser import CallableTool, MarkRef, Message, Tail

_CALL = Marks("<|tool_call_begin|>", "<|tool_call_end|>")
_ARGUMENTS = "<|tool_call_argument_begin|>"
_ID = re.compile(r"(?:functions\.)?(?P<name>.+?)(?::[0-9]+)?")


class KimiK2(SectionedCalls):
    """A list of calls between marks, each with an id that names the function, and JSON."""

    name = "kimi_k2"
    level = 3
    marks = Marks("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")
    more_marks = (*_CALL, _ARGUMENTS)

    @property
    def example(self) -> str:
        call = f"{_CALL.begin}functions.<name>:0{_ARGUMENTS}{{...}}{_CALL.end}"
        return f"{self.marks.begin}{call}{self.marks.end}"

    def fits(self, template: str) -> bool:
        return self.marks.begin in template and _ARGUMENTS in template

    def messages(self, messages: list[Message], template: str) -> list[Message]:
        """Calls get the ids that the model writes: its templates show nothing else of them."""
        return list(_with_own_ids(messages))

    def head(self, text: str, at: int) -> Head:
        if not text.startswith(_CALL.begin, at):
            return None if _CALL.begin.startswith(text[at:]) else NoCall()
        begin = skip_space(text, at + len(_CALL.begin))
        end = name_end(text, begin)
        behind = skip_space(text, end)
        if not text.startswith(_ARGUMENTS, behind):
            return None if _ARGUMENTS.startswith(text[behind:]) else NoCall()
        match = _ID.fullmatch(text, begin, end)
        at = skip_space(text, behind + len(_ARGUMENTS))
        if at == len(text):
            return None
        if match is None or text[at] != "{":
            return NoCall()
        return CallHead(match["name"], at, None, in_object=False, in_list=True)

    def tail(self, head: CallHead) -> Tail | None:
        return MarkSpan(_CALL.end, _CALL.begin, self.marks.end)

    def calls_rule(self, ref: MarkRef, *, is_single: bool) -> str:
        one = f"{ref(_CALL.begin)} call {ref(_CALL.end)}"
        return f"{one} {'' if is_single else f'({one})* '}{ref(self.marks.end)}"

    def call_rules(self, i: int, tool: CallableTool, ref: MarkRef) -> Iterator[str]:
        begin = json.dumps(f"functions.{tool.name}:")
        yield f"call_{i}: {begin} /[0-9]{{1,3}}/ {ref(_ARGUMENTS)} arguments_{i}"
        yield f"arguments_{i}: %json {json_rule(tool.schema())}"


def _with_own_ids(messages: list[Message]) -> Iterator[Message]:
    """`functions.name:n`, where n counts the calls of the conversation."""
    places = itertools.count()
    own: dict[object, str] = {}  # by the id that the client knows
    for message in messages:
        if calls := message.get("tool_calls"):
            told = [
                {**call, "id": f"functions.{call['function']['name']}:{next(places)}"}
                for call in calls
            ]
            own |= {old.get("id"): new["id"] for old, new in zip(calls, told, strict=True)}
            yield {**message, "tool_calls": told}
        elif message.get("tool_call_id") in own:
            yield {**message, "tool_call_id": own[message["tool_call_id"]]}
        else:
            yield message
