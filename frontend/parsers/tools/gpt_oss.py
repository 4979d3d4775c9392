"""Calls as GPT-OSS writes them: messages to functions, in a channel of their own."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator

from frontend.parsers import channels
from frontend.parsers.calls.call_head import Head, NoCall
from frontend.parsers.calls.lark_json import json_rule
from frontend.parsers.calls.marks import Marks
from frontend.parsers.calls.tool_parser import (
    CallableTool,
    Declaration,
    MarkRef,
    Message,
    ToolParser,
)


class GptOss(ToolParser):
    """A message in `commentary` to `functions.name`, in JSON. `ChannelAnswer` reads them."""

    name = "gpt_oss"
    aliases = ("openai", "gpt-oss")
    level = 3
    marks = Marks(f"{channels.CHANNEL}commentary to={channels.FUNCTIONS}")
    more_marks = channels.MARKS
    has_channels = True
    content_head = channels.FINAL

    @property
    def example(self) -> str:
        return f"{self.marks.begin}<name> {_HEAD_END}{{...}}{channels.CALL}"

    def fits(self, template: str) -> bool:
        return channels.fits(template)

    def messages(self, messages: list[Message], template: str) -> list[Message]:
        """Each call before its result, one a message; what the model thought is `thinking`."""
        return list(_one_call_each(messages))

    def declared(self, tools: list[Declaration]) -> list[Declaration]:
        """Its templates want words for each: none are an empty line."""
        return [
            {**tool, "function": {**function, "description": function.get("description") or ""}}
            for tool in tools
            for function in (tool["function"],)
        ]

    def behind_mark(self, text: str, at: int, names: Collection[str]) -> Head:
        return NoCall()

    def calls_rule(self, ref: MarkRef, *, is_single: bool) -> str:
        """It ends its turn with a call: one is all there is."""
        return "call"

    def call_rules(self, i: int, tool: CallableTool, ref: MarkRef) -> Iterator[str]:
        head = f'{json.dumps(tool.name + " ")} {ref(channels.CONSTRAIN)} "json"'
        yield f"call_{i}: {head} {ref(channels.MESSAGE)} arguments_{i}"
        yield f"arguments_{i}: %json {json_rule(tool.schema())}"


_HEAD_END = f"{channels.CONSTRAIN}json{channels.MESSAGE}"


def _one_call_each(messages: list[Message]) -> Iterator[Message]:
    """The templates show the first call of a message, and take a result for the last call's."""
    results = {message.get("tool_call_id"): message for message in messages if _is_result(message)}
    placed: set[object] = set()
    for message in messages:
        if _is_result(message) and message.get("tool_call_id") in placed:
            continue
        calls = message.get("tool_calls") or ()
        if message.get("role") != "assistant" or not calls:
            yield _with_thinking(message)
            continue
        for i, call in enumerate(calls):
            rest = message if i == 0 else {"role": "assistant", "content": None}
            yield _with_thinking({**rest, "tool_calls": [call]})
            key = call.get("id")
            if len(calls) > 1 and key in results and key not in placed:
                placed.add(key)
                yield results[key]


def _is_result(message: Message) -> bool:
    return bool(message.get("role") == "tool")


def _with_thinking(message: Message) -> Message:
    """Beside a call the templates take content or thinking: both are what it thought aloud."""
    thought = message.get("reasoning_content") or message.get("reasoning")
    if message.get("role") != "assistant" or not isinstance(thought, str) or not thought:
        return message
    content = message.get("content")
    if message.get("tool_calls") and isinstance(content, str) and content:
        return {**message, "content": None, "thinking": f"{thought}\n\n{content}"}
    return {**message, "thinking": thought}
