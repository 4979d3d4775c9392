"""Answers have the fields that their structs say: no others, and none is missing."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from jsonschema import Draft202012Validator

from frontend.openapi.document import openapi_document
from frontend.surfaces.responses.response_answer import ITEM_KINDS, Response

_SCHEMAS = openapi_document("0")["components"]["schemas"]


def check_answer(kind: type[msgspec.Struct], told: Any) -> None:
    """By the struct, and by the document that is made of it."""
    assert json.loads(msgspec.json.encode(msgspec.convert(told, kind))) == told
    check_document(kind, told)


def check_document(kind: type[msgspec.Struct], told: Any) -> None:
    """By the document alone."""
    root = {"$ref": f"#/components/schemas/{kind.__name__}", "components": {"schemas": _SCHEMAS}}
    Draft202012Validator(root).validate(told)


def check_response_answer(told: dict[str, Any]) -> None:
    """Its items are of kinds that only their types tell apart."""
    check_document(Response, told)
    check_answer(Response, {**told, "output": []})
    check_items(told["output"])


def check_items(told: list[dict[str, Any]]) -> None:
    """Each has the fields of one kind."""
    for item in told:
        kinds = [kind for kind in ITEM_KINDS if item.keys() == _names(kind)]
        is_input = any(part["type"].startswith("input_") for part in item.get("content", ()))
        check_answer(kinds[0 if is_input else -1], item)


def _names(kind: type[msgspec.Struct]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(kind)}
