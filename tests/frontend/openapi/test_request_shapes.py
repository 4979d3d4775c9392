"""What the document says is wrong inside a body, whoever reads the body refuses."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from frontend.openapi.body_routes import MESSAGES, OLLAMA, ROUTES, BodyRoute
from frontend.openapi.document import openapi_document
from shared.errors import RequestError
from tests.frontend.openapi.test_api_table import BODIES, requests_for

FUNCTION = {"name": "now", "description": "The time.", "parameters": {"type": "object"}}
CALL = {"id": "c", "type": "function", "function": {"name": "now", "arguments": "{}"}}
EXAMPLES: dict[str, dict[str, Any]] = {
    "chat": {
        "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": [{"type": "text", "text": "When?"}], "name": "me"},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c", "content": "12"},
        ],
        "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": {"type": "function", "function": {"name": "now"}},
        "stop": ["x"],
        "reasoning_effort": "low",
    },
    "responses": {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "When?"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
            {"type": "function_call", "call_id": "c", "name": "now", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "12"},
            {"type": "message", "role": "assistant", "content": "Noon."},
            {"type": "message", "role": "developer", "content": "Be kind."},
        ],
        "tools": [{"type": "function", **FUNCTION}],
        "tool_choice": {
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "function", "name": "now"}],
        },
        "reasoning": {"effort": "low"},
        "include": ["message.output_text.logprobs"],
    },
    "messages": {
        "system": [{"type": "text", "text": "Be kind."}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "When?"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm."},
                    {"type": "tool_use", "id": "c", "name": "now", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "c", "content": "12"}],
            },
        ],
        "tools": [{"name": "now", "description": "The time.", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "tool", "name": "now"},
        "stop_sequences": ["x"],
        "thinking": {"type": "adaptive"},
    },
    "api/chat": {
        "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "When?"},
            {
                "role": "assistant",
                "content": "",
                "thinking": "Hm.",
                "tool_calls": [{"function": {"name": "now", "arguments": {}}}],
            },
            {"role": "tool", "content": "12", "tool_name": "now"},
        ],
        "options": {"temperature": 0.5, "stop": ["x"]},
        "think": False,
    },
}
# A text is taken without its type where nothing but a text may stand.
UNCHECKED = {
    "responses": ("input.1.summary.0.type: None",),
    "messages": ("system.0.type: None",),
}
WRONG: tuple[Any, ...] = (7, "nonsense", True, [], {}, [7], {"type": "nonsense"})
ROUTES_BY_NAME = {route.name: route for route in (*ROUTES, MESSAGES, *OLLAMA)}
COMPONENTS = openapi_document("0")["components"]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in inner:
        yield (*path, key)
        if isinstance(each, dict | list):
            yield from places(each, (*path, key))


def mutants(example: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """With another value at one place, or nothing there."""
    for *path, last in places(example):
        for wrong in (*WRONG, None):
            made = copy.deepcopy(example)
            inner: Any = made
            for key in path:
                inner = inner[key]
            if wrong is None:
                del inner[last]
            else:
                inner[last] = wrong
            yield f"{'.'.join(map(str, (*path, last)))}: {wrong!r}", made


async def is_taken(route: BodyRoute, fields: dict[str, Any]) -> bool:
    try:
        await requests_for(route, fields)
    except RequestError:
        return False
    return True


@pytest.mark.parametrize("name", EXAMPLES)
async def test_what_the_document_calls_wrong_is_refused(name: str) -> None:
    route, example = ROUTES_BY_NAME[name], EXAMPLES[name]
    schema = {"$ref": f"#/components/schemas/{route.schema}", "components": COMPONENTS}
    validator = Draft202012Validator(schema)
    validator.validate({**BODIES[name], **example})
    assert await is_taken(route, example)
    taken = [
        change
        for change, fields in mutants(example)
        if not validator.is_valid({**BODIES[name], **fields}) and await is_taken(route, fields)
    ]
    checked = [change for change in taken if not change.startswith(UNCHECKED.get(name, ()))]
    assert not checked
