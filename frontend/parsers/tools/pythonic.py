"""Calls in Python, as Llama 3.2 and 4 and ToolACE write them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping

from frontend.parsers.calls.call_head import CallHead, Head, NoCall, name_end
from frontend.parsers.calls.json_span import skip_space
from frontend.parsers.calls.lark_json import json_rule
from frontend.parsers.calls.marks import Marks
from frontend.parsers.calls.python_arguments import PythonArguments
from frontend.parsers.calls.tool_parser import ArgumentReader, CallableTool, ListedCalls, MarkRef
from shared.errors import UnsupportedParameter
from shared.protocol.reply import ParamKind

_OF_OBJECT = {"type", "properties", "required", "additionalProperties"}
_NOT_HELD = "calls in Python cannot be held to"
_PYTHONIC_WORDS = "[func_name1("  # by which templates ask for calls in Python


class Pythonic(ListedCalls):
    """The whole text is `[name(a=1, b="x"), ...]`. No template tells that a model writes so."""

    name = "pythonic"
    level = 3
    marks = Marks("")
    no_call = r"/([ \t\r\n]*[^ \t\r\n\[](.|\n)*)?/"

    @property
    def example(self) -> str:
        return "[<name>(<parameter>=<value>, ...)]"

    def fits(self, template: str) -> bool:
        return False

    def at_start(self, text: str, at: int, names: Collection[str]) -> Head:
        at = skip_space(text, at)
        if at == len(text):
            return None
        return python_head(text, at + 1, names) if text[at] == "[" else NoCall()

    def behind_mark(self, text: str, at: int, names: Collection[str]) -> Head:
        return NoCall()

    def arguments(self, kinds: Mapping[str, ParamKind]) -> ArgumentReader:
        return PythonArguments()

    def next_in_list(self, text: str, at: int, names: Collection[str]) -> Head:
        return python_head(text, at + 1, names) if text[at] == "," else NoCall()

    def call_rules(self, i: int, tool: CallableTool, ref: MarkRef) -> Iterator[str]:
        return python_rules(i, tool)


class Llama4(Pythonic):
    """The same, with or without `<|python_start|>` and `<|python_end|>` around it."""

    name = "llama4_pythonic"
    marks = Marks("<|python_start|>", "<|python_end|>")

    def fits(self, template: str) -> bool:
        return self.marks.begin in template and _PYTHONIC_WORDS in template

    def at_start(self, text: str, at: int, names: Collection[str]) -> Head:
        at = skip_space(text, at)
        begin = self.marks.begin
        if text.startswith(begin, at):
            at = skip_space(text, at + len(begin))
        elif begin.startswith(text[at:]):
            return None
        return super().at_start(text, at, names)

    def behind_mark(self, text: str, at: int, names: Collection[str]) -> Head:
        return super().at_start(text, at, names)


def python_head(text: str, at: int, names: Collection[str]) -> Head:
    """The head of `name(`; None while that is open."""
    at = skip_space(text, at)
    end = name_end(text, at)
    name = text[at:end]
    if end == len(text):
        is_open = not names or any(each.startswith(name) for each in names)
        return None if is_open else NoCall()
    if text[end] != "(" or not name or (names and name not in names):
        return NoCall()
    return CallHead(name, end + 1, None, in_object=False, in_list=True)


def python_rules(i: int, tool: CallableTool) -> Iterator[str]:
    """The rules of a call in Python: parameters in the order of the schema, with JSON for values.

    `first_i_j` is what may stand from the parameter j on where none stands before, `more_i_j`
    where one does. Raises UnsupportedParameter.
    """
    schema, param = tool.schema(), tool.schema_param
    if odd := sorted(schema.keys() - _OF_OBJECT):
        raise UnsupportedParameter(param, f"holds {odd[0]!r}, which {_NOT_HELD}")
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if missing := [name for name in required if name not in properties]:
        raise UnsupportedParameter(param, f"requires {missing[0]!r}, which it does not describe")
    yield f'call_{i}: {json.dumps(f"{tool.name}(")} first_{i}_0 ")"'
    for j, (name, each) in enumerate(properties.items()):
        if not name.isidentifier():
            raise UnsupportedParameter(param, f"names {name[:100]!r}, which {_NOT_HELD}")
        one = f"param_{i}_{j} more_{i}_{j + 1}"
        yield f"first_{i}_{j}: {one}" + ("" if name in required else f" | first_{i}_{j + 1}")
        yield f'more_{i}_{j}: ", " {one}' + ("" if name in required else f" | more_{i}_{j + 1}")
        yield f"param_{i}_{j}: {json.dumps(f'{name}=')} value_{i}_{j}"
        yield f"value_{i}_{j}: %json {json_rule(each if isinstance(each, dict) else {})}"
    yield f'first_{i}_{len(properties)}: ""'
    yield f'more_{i}_{len(properties)}: ""'
