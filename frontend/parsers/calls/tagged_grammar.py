"""Rules of calls whose arguments stand in tags."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from frontend.parsers.calls.callable_tool import CallableTool
from frontend.parsers.calls.lark_json import json_rule
from frontend.parsers.calls.param_kinds import param_kinds
from frontend.parsers.calls.tagged_arguments import FUNCTION, FUNCTION_END, PARAM, PARAM_END
from shared.errors import UnsupportedParameter
from shared.protocol.reply import ParamKind

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
    """With the end of its tag."""
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
