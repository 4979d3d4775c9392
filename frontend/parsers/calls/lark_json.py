"""A JSON schema inside a grammar in Lark."""

from __future__ import annotations

import json

from shared.protocol.sampling import DEFAULT_WHITESPACE


def json_rule(schema: dict[str, object]) -> str:
    """What follows `%json`, without anything that reads like a token of Lark."""
    spaced = {**schema, "x-guidance": {"whitespace_pattern": DEFAULT_WHITESPACE}}
    text = json.dumps(spaced, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<[", "\\u003c[")
