"""Calls as DeepSeek's models write them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, ClassVar

from frontend.parsers.calls.call_head import CallHead, Head, NoCall, name_end
from frontend.parsers.calls.json_span import skip_space
from frontend.parsers.calls.lark_json import json_rule
from frontend.parsers.calls.marks import Marks, MarkSpan
from frontend.parsers.calls.sectioned_calls import SectionedCalls
from frontend.parsers.calls.tool_parser import CallableTool, MarkRef, Message, Tail

_CALL = Marks("<\uff5ctool\u2581call\u2581begin\uff5c>", "<\uff5ctool\u2581call\u2581end\uff5c>")
_SEPARATOR = "<\uff5ctool\u2581sep\uff5c>"
_FENCE = "```json"
_WRITES_JSON = re.compile(r"""arguments['"]?\]?\s*\|\s*tojson""")


class DeepseekV3(SectionedCalls):
    """A list of calls between marks, each `function<sep>name` and a block of JSON: V3 and R1."""

    name = "deepseek_v3"
    aliases: ClassVar[tuple[str, ...]] = ("deepseekv3",)
    level = 3
    marks = Marks(
        "<\uff5ctool\u2581calls\u2581begin\uff5c>", "<\uff5ctool\u2581calls\u2581end\uff5c>"
    )
    more_marks = (*_CALL, _SEPARATOR)
    _between: ClassVar[str] = r'"\n"'  # calls, in Lark

    def fits(self, template: str) -> bool:
        return _is_deepseek(template) and _FENCE in template

    @property
    def example(self) -> str:
        return self._list_of(self._call("<name>", "{...}"))

    def messages(self, messages: list[Message], template: str) -> list[Message]:
        """Most of their templates join the arguments to other texts."""
        if _WRITES_JSON.search(template):
            return messages
        return [
            {**message, "tool_calls": [_with_text(call) for call in message["tool_calls"]]}
            if message.get("tool_calls")
            else message
            for message in messages
        ]

    def head(self, text: str, at: int) -> Head:
        return _head(text, at)

    def tail(self, head: CallHead) -> Tail | None:
        return MarkSpan(_CALL.end, _CALL.begin, self.marks.end)

    def calls_rule(self, ref: MarkRef, *, is_single: bool) -> str:
        one = f"{ref(_CALL.begin)} call {ref(_CALL.end)}"
        more = "" if is_single else f" ({self._between} {one})*"
        return f"{one}{more} {ref(self.marks.end)}"

    def call_rules(self, i: int, tool: CallableTool, ref: MarkRef) -> Iterator[str]:
        before = json.dumps(f"{tool.name}\n{_FENCE}\n")
        yield f'call_{i}: "function" {ref(_SEPARATOR)} {before} arguments_{i} "\\n```"'
        yield f"arguments_{i}: %json {json_rule(tool.schema())}"

    def _list_of(self, call: str) -> str:
        return f"{self.marks.begin}{_CALL.begin}{call}{_CALL.end}{self.marks.end}"

    def _call(self, name: str, arguments: str) -> str:
        return f"function{_SEPARATOR}{name}\n{_FENCE}\n{arguments}\n```"


class DeepseekV31(DeepseekV3):
    """The same, each call `name<sep>{...}`: V3.1."""

    name = "deepseek_v31"
    aliases = ("deepseekv31",)
    _between = '""'

    def fits(self, template: str) -> bool:
        return _is_deepseek(template) and _FENCE not in template

    def call_rules(self, i: int, tool: CallableTool, ref: MarkRef) -> Iterator[str]:
        yield f"call_{i}: {json.dumps(tool.name)} {ref(_SEPARATOR)} arguments_{i}"
        yield f"arguments_{i}: %json {json_rule(tool.schema())}"

    def _call(self, name: str, arguments: str) -> str:
        return f"{name}{_SEPARATOR}{arguments}"


def _is_deepseek(template: str) -> bool:
    return DeepseekV3.marks.begin in template and _SEPARATOR in template


def _with_text(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function.get("arguments")
    if isinstance(arguments, str):  # it was cut
        return call
    text = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": text}}


def _head(text: str, at: int) -> Head:
    """The head of a call in either form: models mix them."""
    if not text.startswith(_CALL.begin, at):
        return None if _CALL.begin.startswith(text[at:]) else NoCall()
    begin = at + len(_CALL.begin)
    end = name_end(text, begin)
    if not text.startswith(_SEPARATOR, end):
        return None if _SEPARATOR.startswith(text[end:]) else NoCall()
    at = skip_space(text, end + len(_SEPARATOR))
    if at == len(text):
        return None
    if text[at] == "{":
        return _found(text[begin:end], at)
    end = name_end(text, at)
    fence = skip_space(text, end)
    if not text.startswith(_FENCE, fence):
        return None if _FENCE.startswith(text[fence:]) else NoCall()
    name, at = text[at:end], skip_space(text, fence + len(_FENCE))
    if at == len(text):
        return None
    return _found(name, at) if text[at] == "{" else NoCall()


def _found(name: str, at: int) -> Head:
    return CallHead(name, at, None, in_object=False, in_list=True) if name else NoCall()
