"""What a client is told of a value that is not of its type: the field, its value, and what fits."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import inspect

from shared.errors import InvalidRequest, UnsupportedParameter

_AT = " - at `$"
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]")
_ANY_KEY = "[...]"  # of an object whose keys are no names of fields
_MISSING = re.compile(r"missing required field `(.+)`")
_LENGTH = re.compile(r"of length (<=|>=) (\d+)")
_MAX_SHOWN = 100  # characters of a value

_Step = str | int


def type_error(
    exc: msgspec.ValidationError, value: Any, wanted: Any, prefix: str = ""
) -> InvalidRequest:
    """The error of a client whose `value` cannot be converted to `wanted`.

    `prefix`: where the value stands in its body.
    """
    told, has_path, path = str(exc).rpartition(_AT)  # what is told may quote the client
    told, path = (told, path.removesuffix("`")) if has_path else (path, "")
    name = prefix + (path if prefix and not prefix.endswith(".") else path.removeprefix("."))
    if missing := _MISSING.search(told):
        name = f"{name}.{missing[1]}" if path else prefix + missing[1]
        return InvalidRequest(f"'{name}' is required", param=name, code="missing_field")
    if _ANY_KEY in path:
        return _wrong_type(name, told)
    steps = [int(found[2]) if found[2] else found[1] for found in _STEP.finditer(path)]
    given = _at(value, steps)
    if told.startswith("Invalid value"):
        kinds = ", ".join(_tags(wanted, value, steps))
        return UnsupportedParameter(name, f"is {_short(given)}, must be one of {kinds}")
    if told.startswith("Invalid enum value"):
        choices = ", ".join(_choices(list(_types_at(wanted, value, steps))))
        words = f"is {_short(given)}, must be one of {choices}"
        if steps and steps[-1] == "type":  # a kind of thing that is not there
            return UnsupportedParameter(name, words)
        return InvalidRequest(f"'{name}' {words}", param=name)
    if length := _LENGTH.search(told):
        words = "at most" if length[1] == "<=" else "at least"
        return InvalidRequest(
            f"'{name}' has a length of {len(given)}, must have {words} {length[2]}", param=name
        )
    if "matching regex" in told:
        rule = _described(_types_at(wanted, value, steps)) or told.removeprefix("Expected ")
        return InvalidRequest(f"'{name}' is {_short(given)}, must be {rule}", param=name)
    return _wrong_type(name, told)


def _wrong_type(name: str, told: str) -> InvalidRequest:
    param = name.replace(_ANY_KEY, "")
    return InvalidRequest(f"'{name}' has the wrong type: {told}", param=param, code="invalid_type")


def _at(value: Any, steps: Sequence[_Step]) -> Any:
    for step in steps:
        value = value[step]
    return value


def _types_at(wanted: Any, value: Any, steps: Sequence[_Step]) -> Iterator[inspect.Type]:
    """The types that a value may have there, given what surrounds it."""
    types = list(_alternatives(_type_info(wanted)))
    for step in steps:
        types = [inner for each in types for inner in _inner_types(each, value, step)]
        value = value[step]
    yield from types


_type_info = functools.cache(inspect.type_info)


def _alternatives(each: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(each, inspect.UnionType):
        for inner in each.types:
            yield from _alternatives(inner)
    elif isinstance(each, inspect.Metadata) and not each.extra_json_schema:
        yield from _alternatives(each.type)
    else:
        yield each


def _inner_types(each: inspect.Type, value: Any, step: _Step) -> Iterator[inspect.Type]:
    if isinstance(each, inspect.Metadata):
        each = each.type
    if isinstance(each, inspect.ListType) and isinstance(step, int):
        yield from _alternatives(each.item_type)
    elif isinstance(each, inspect.StructType) and _is_of(each, value):
        for field in each.fields:
            if field.encode_name == step:
                yield from _alternatives(field.type)


def _is_of(struct: inspect.StructType, value: Any) -> bool:
    return struct.tag_field is None or value.get(struct.tag_field) == struct.tag


def _tags(wanted: Any, value: Any, steps: Sequence[_Step]) -> list[str]:
    """What may say which kind of object it is: the last step names the field."""
    return [
        str(each.tag)
        for each in _types_at(wanted, value, steps[:-1])
        if isinstance(each, inspect.StructType) and each.tag_field == steps[-1]
    ]


def _choices(types: Sequence[inspect.Type]) -> list[str]:
    literals = [each for each in types if isinstance(each, inspect.LiteralType)]
    names = [str(value) for each in literals for value in each.values]
    enums = [each for each in types if isinstance(each, inspect.EnumType)]
    names += [str(value.value) for each in enums for value in each.cls]
    has_objects = any(isinstance(each, inspect.StructType) for each in types)
    return [*names, "an object"] if has_objects else names


def _described(types: Iterator[inspect.Type]) -> str | None:
    """In the words that stand beside the type."""
    for each in types:
        if isinstance(each, inspect.Metadata) and each.extra_json_schema:
            return str(each.extra_json_schema.get("description"))
    return None


def _short(value: Any) -> str:
    """A value as it is told: a name or a number; a text may be long."""
    return json.dumps(value[:_MAX_SHOWN] if isinstance(value, str) else value)
