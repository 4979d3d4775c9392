"""Calls whose arguments stand in tags, one for each: how they are read, and their grammar."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from frontend.parsers.calls.json_span import skip_space
from frontend.parsers.calls.lark_json import json_rule
from frontend.parsers.calls.tool_parser import CallableTool, MarkRef
from shared.errors import UnsupportedParameter
from shared.protocol.reply import ParamKind

_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}


@dataclass(frozen=True, slots=True)
class TagForm:
    """The marks of arguments: `begin` name `between` value `end`, for each, then `close`.

    A reader takes any white space between them. The rest is what a grammar asks for.
    """

    begin: str
    between: tuple[str, ...]
    end: str
    close: str = ""  # "": what closes the call
    gap: str = ""  # between the marks of `between`
    pad: str = ""  # before and behind a value
    is_exact: bool = False  # line ends between its marks are the value's
    line: str = "\n"  # behind `end`


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

    def __init__(self, form: TagForm, kinds: Mapping[str, ParamKind]) -> None:
        """`kinds`: of the parameters that take more than text."""
        self._form = form
        self._kinds = kinds
        self._num_read = 0
        self.is_closed = False

    def read(self, text: str, at: int) -> tuple[str, int]:
        """JSON of what begins here, and where it ends; "" while that is open."""
        begin = skip_space(text, at)
        if text.startswith(self._form.begin, begin):
            return self._argument(text, at, begin + len(self._form.begin))
        if _may_become(self._form.begin, text, begin) or _may_become(self._form.close, text, begin):
            return "", at
        return self._closed(text, begin)

    def _argument(self, text: str, at: int, name_at: int) -> tuple[str, int]:
        """What `read` tells of an argument, whose name begins at `name_at`."""
        first, *others = self._form.between
        name_end = text.find(first, name_at)
        if name_end < 0:
            return "", at
        value_at = name_end + len(first)
        for mark in others:
            value_at = skip_space(text, value_at)
            if _may_become(mark, text, value_at):
                return "", at
            if not text.startswith(mark, value_at):
                return self._closed(text, skip_space(text, at))
            value_at += len(mark)
        end = text.find(self._form.end, value_at)
        if end < 0:
            return "", at
        value = text[value_at:end]
        told = self._json(text[name_at:name_end], value if self._form.is_exact else _trimmed(value))
        return told, end + len(self._form.end)

    def _closed(self, text: str, at: int) -> tuple[str, int]:
        """How an argument is closed: by its mark, or by something else; what that is belongs to no
        argument.
        """
        self.is_closed = True
        end = at + len(self._form.close) if text.startswith(self._form.close, at) else at
        return ("}" if self._num_read else "{}"), end

    def _json(self, name: str, value: str) -> str:
        begin = ", " if self._num_read else "{"
        self._num_read += 1
        name, kind = self.named(name)
        return f"{begin}{json.dumps(name, ensure_ascii=False)}: {self._value(kind, value)}"

    def named(self, tag: str) -> tuple[str, ParamKind | None]:
        """The name of its parameter that a tag says, and what that takes; None: text alone."""
        return tag, self._kinds.get(tag)

    def _value(self, kind: ParamKind | None, value: str) -> str:
        if kind is ParamKind.TEXT_OR_NULL and value == "null":
            return value
        if kind is ParamKind.JSON:
            word = value.strip()
            word = _PYTHON_WORDS.get(word, word)
            with contextlib.suppress(msgspec.DecodeError, RecursionError):
                msgspec.json.decode(word)
                return word  # else the model wrote something that is not JSON: it stays text
        return json.dumps(value, ensure_ascii=False)


def _may_become(mark: str, text: str, at: int) -> bool:
    """Whether the text ends here with the beginning of a mark."""
    return len(text) - at < len(mark) and mark.startswith(text[at:])


def _trimmed(value: str) -> str:
    """The value without the line ends that set it apart from its tags."""
    value = value.removeprefix("\n")
    return value.removesuffix("\n")


_OF_OBJECT = {"type", "properties", "required", "additionalProperties"}
_OF_TEXT = {"type", "anyOf", "oneOf"}
_NOT_HELD = "calls of this model cannot be held to: they are not JSON"


class TaggedRules:
    """The grammar, in Lark, of calls whose arguments stand in tags."""

    def __init__(self, form: TagForm, ref: MarkRef) -> None:
        self._form = form
        self._ref = ref

    def call(self, i: int, tool: CallableTool, head: str) -> Iterator[str]:
        """`call_i` and what it is made of: `head`, and parameters in the order of the schema.

        Raises UnsupportedParameter for a schema that tags cannot be held to.
        """
        schema, param = tool.schema(), tool.schema_param
        if odd := sorted(schema.keys() - _OF_OBJECT):
            raise UnsupportedParameter(param, f"holds {odd[0]!r}, which {_NOT_HELD}")
        kinds, required = param_kinds(tool.parameters), schema.get("required", [])
        parts = [json.dumps(head)]
        for j, (name, each) in enumerate(schema.get("properties", {}).items()):
            if self._form.between[0] in name or "\n" in name:
                raise UnsupportedParameter(param, f"names {name[:100]!r}, which cannot be in a tag")
            parts.append(f"param_{i}_{j}" + ("" if name in required else "?"))
            tag, kind = self.tag(name, kinds.get(name))
            yield f"param_{i}_{j}: {self._begin(tag)} value_{i}_{j}"
            place = f"{param}.properties.{name}"
            yield from self._value(f"value_{i}_{j}", each, kind, place)
        if missing := [name for name in required if name not in schema.get("properties", {})]:
            raise UnsupportedParameter(
                param, f"requires {missing[0]!r}, which it does not describe"
            )
        if self._form.close:
            parts.append(self._ref(self._form.close))
        yield " ".join([f"call_{i}:", *parts])

    def tag(self, name: str, kind: ParamKind | None) -> tuple[str, ParamKind | None]:
        """What the tag of a parameter says, and what its value is held to."""
        return name, kind

    def _begin(self, name: str) -> str:
        """All before a value."""
        first, *others = map(self._ref, self._form.between)
        parts = [self._ref(self._form.begin), json.dumps(name, ensure_ascii=False), first]
        for mark in others:
            parts += [json.dumps(self._form.gap), mark]
        return " ".join(part for part in [*parts, json.dumps(self._form.pad)] if part != '""')

    def _value(self, rule: str, schema: Any, kind: ParamKind | None, param: str) -> Iterator[str]:
        """The rules of a value, with the end of its tag."""
        form, end_ref = self._form, self._ref(self._form.end)
        parts = [json.dumps(form.pad), end_ref, json.dumps(form.line)]
        end = " ".join(part for part in parts if part != '""')
        texts = _texts(schema)
        if kind is ParamKind.JSON:
            yield f"{rule}: json_{rule} {end}"
            yield f"json_{rule}: %json {json_rule(schema)}"
        elif texts is not None:
            words = " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)
            yield f"{rule}: ({words}) {end}"
        elif isinstance(schema, dict) and (odd := sorted(schema.keys() - _OF_TEXT)):
            raise UnsupportedParameter(param, f"holds {odd[0]!r}, which {_NOT_HELD}")
        elif end_ref == json.dumps(form.end):
            yield f"{rule}[suffix={json.dumps(form.pad + form.end + form.line)}]: FREE"
        else:  # a token, which free text cannot hold
            yield f"{rule}: FREE {end}"


def _texts(schema: Any) -> list[str] | None:
    """The only ones that a text parameter takes; None when it takes any."""
    if not isinstance(schema, dict):
        return None
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values is None or not all(isinstance(value, str | None) for value in values):
        return None
    return ["null" if value is None else value for value in values]
