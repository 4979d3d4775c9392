"""Calls whose arguments stand in tags, one for each: how they are read, and their grammar."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from frontend.parsers.calls.json_span import skip_space
from frontend.parsers.calls.lark_json import json_rule
from frontend.parsers.calls.tool_parser import CallableTool
from shared.errors import UnsupportedParameter
from shared.protocol.reply import ParamKind

FUNCTION = "<function="
FUNCTION_END = "</function>"
PARAM = "<parameter="
PARAM_END = "</parameter>"
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}


def param_kinds(parameters: Any) -> dict[str, ParamKind]:
    """The kinds of the parameters of a function, but for those that take text alone."""
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    if not isinstance(properties, dict):
        return {}
    kinds = {name: _kind(schema) for name, schema in properties.items()}
    return {name: kind for name, kind in kinds.items() if kind is not None}


def _kind(schema: Any) -> ParamKind | None:
    types = _types(schema)
    if types and "string" not in types:
        return ParamKind.JSON
    return ParamKind.TEXT_OR_NULL if "null" in types else None


def _types(schema: Any) -> set[str]:
    """That a value may have; empty for any."""
    if not isinstance(schema, dict):
        return set()
    kind = schema.get("type")
    if isinstance(kind, str | list):
        return {kind} if isinstance(kind, str) else {each for each in kind if isinstance(each, str)}
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return {"string" if isinstance(value, str) else "other" for value in values}
    options = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(options, list):
        return set().union(*map(_types, options))
    return {"other"} if "$ref" in schema else set()


class TaggedArguments:
    """Reads the arguments of one call. A value is told when it is whole."""

    is_verbatim = False

    def __init__(self, kinds: Mapping[str, ParamKind]) -> None:
        """`kinds`: of the parameters that take more than text."""
        self._kinds = kinds
        self._num_read = 0
        self.is_closed = False

    def read(self, text: str, at: int) -> tuple[str, int]:
        """JSON of what begins here, and where it ends; "" while that is open."""
        begin = skip_space(text, at)
        if text.startswith(PARAM, begin):
            name_end = text.find(">", begin)
            end = text.find(PARAM_END, begin)
            if end < 0:
                return "", at
            name = text[begin + len(PARAM) : name_end]
            told = self._json(name, _trimmed(text[name_end + 1 : end]))
            return told, end + len(PARAM_END)
        if PARAM.startswith(text[begin:]) or (
            FUNCTION_END.startswith(text[begin:]) and len(text) - begin < len(FUNCTION_END)
        ):
            return "", at
        self.is_closed = True  # also by something else: what it is belongs to no argument
        end = begin + len(FUNCTION_END) if text.startswith(FUNCTION_END, begin) else begin
        return ("}" if self._num_read else "{}"), end

    def _json(self, name: str, value: str) -> str:
        begin = ", " if self._num_read else "{"
        self._num_read += 1
        return f"{begin}{json.dumps(name, ensure_ascii=False)}: {self._value(name, value)}"

    def _value(self, name: str, value: str) -> str:
        kind = self._kinds.get(name)
        if kind is ParamKind.TEXT_OR_NULL and value == "null":
            return value
        if kind is ParamKind.JSON:
            word = value.strip()
            word = _PYTHON_WORDS.get(word, word)
            with contextlib.suppress(msgspec.DecodeError, RecursionError):
                msgspec.json.decode(word)
                return word  # else the model wrote something that is not JSON: it stays text
        return json.dumps(value, ensure_ascii=False)


def _trimmed(value: str) -> str:
    """The value without the line ends that set it apart from its tags."""
    value = value.removeprefix("\n")
    return value.removesuffix("\n")


_OF_OBJECT = {"type", "properties", "required", "additionalProperties"}
_OF_TEXT = {"type", "anyOf", "oneOf"}
_NOT_HELD = "calls of this model cannot be held to: they are not JSON"


def tagged_call_rules(i: int, tool: CallableTool) -> Iterator[str]:
    """`call_i` and what it is made of: parameters in the order of the schema.

    Raises UnsupportedParameter for a schema that tags cannot be held to.
    """
    schema, param = tool.schema(), f"{tool.param}.parameters"
    if odd := sorted(schema.keys() - _OF_OBJECT):
        raise UnsupportedParameter(param, f"holds {odd[0]!r}, which {_NOT_HELD}")
    kinds, required = param_kinds(tool.parameters), schema.get("required", [])
    references = []
    for j, (name, each) in enumerate(schema.get("properties", {}).items()):
        if ">" in name or "\n" in name:
            raise UnsupportedParameter(param, f"names {name[:100]!r}, which cannot be in a tag")
        references.append(f"param_{i}_{j}" + ("" if name in required else "?"))
        begin = f'{json.dumps(f"{PARAM}{name}>")} "\\n"'
        yield f"param_{i}_{j}: {begin} value_{i}_{j}"
        yield from _value(f"value_{i}_{j}", each, kinds.get(name), f"{param}.properties.{name}")
    if missing := [name for name in required if name not in schema.get("properties", {})]:
        raise UnsupportedParameter(param, f"requires {missing[0]!r}, which it does not describe")
    begin = f'{json.dumps(f"{FUNCTION}{tool.name}>")} "\\n"'
    yield " ".join([f"call_{i}:", begin, *references, json.dumps(FUNCTION_END)])


def _value(rule: str, schema: Any, kind: ParamKind | None, param: str) -> Iterator[str]:
    """The rules of a value, with the end of its tag."""
    end = json.dumps(f"\n{PARAM_END}\n")
    texts = _texts(schema)
    if kind is ParamKind.JSON:
        yield f"{rule}: json_{rule} {end}"
        yield f"json_{rule}: %json {json_rule(schema)}"
    elif texts is not None:
        words = " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)
        yield f"{rule}: ({words}) {end}"
    elif not isinstance(schema, dict) or not (odd := sorted(schema.keys() - _OF_TEXT)):
        yield f"{rule}[suffix={end}]: FREE"
    else:
        raise UnsupportedParameter(param, f"holds {odd[0]!r}, which {_NOT_HELD}")


def _texts(schema: Any) -> list[str] | None:
    """The only ones that a text parameter takes; None when it takes any."""
    if not isinstance(schema, dict):
        return None
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values is None or not all(isinstance(value, str | None) for value in values):
        return None
    return ["null" if value is None else value for value in values]
