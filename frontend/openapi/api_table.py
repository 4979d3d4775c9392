"""`python -m frontend.openapi.api_table > docs/api.md`: which route takes which field."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from frontend.fields.request_body import Refused
from frontend.openapi.bodies import body_schemas
from frontend.openapi.body_routes import (
    DEFAULT_WORDS,
    DEFAULTS,
    MESSAGES,
    OLLAMA,
    OPTIONS,
    OTHER_ROUTES,
    ROUTES,
    TOKEN_ROUTES,
    BodyRoute,
)
from frontend.routes.api_route import CHAT_BATCH_PATH

# To find out what a field may be although it is refused when it asks for something.
_PROBES: tuple[Any, ...] = (1, -1, True, "none", "auto", ["text"])
_EMPTY: tuple[Any, ...] = (False, 0, "", [], {})
_FIRST = (
    "model", "messages", "prompt", "text", "input_ids", "input",
    "text_1", "text_2", "query",
)  # fmt: skip


def api_table() -> str:
    """docs/api.md."""
    lines = [
        "# The fields of each route",
        "",
        "Made by `python -m frontend.openapi.api_table > docs/api.md` from the types, ranges and "
        "tables",
        "that bodies are checked by. What the fields mean is in [http-api.md](http-api.md). Over",
        "NATS the same bodies are taken. The columns:",
        "",
        *(f"- {route.name}: `POST {route.path}`" for route in ROUTES),
        "",
        f"`POST {CHAT_BATCH_PATH}` takes the fields of a chat, and lists of `messages`.",
        "",
        "*yes*: it has an effect. *partly*: some values are refused. *refused*: by name, with 400",
        "`unsupported_parameter`, where its value asks for something. *ignored*: taken, because it",
        "changes nothing there. Empty: unknown there. What is unknown, and what is in no table,",
        "has no effect, and the header `X-Unknown-Fields` of the answer names it; it is refused",
        "with 400 `unknown_field` by `--unknown-fields refuse`. `null` is the default. A model's",
        "`generation_config.json` may say another for temperature, top_p, top_k, min_p and",
        "repetition_penalty.",
        "",
        *_table(ROUTES),
        "",
        "## Without effect, or refused, on some route",
        "",
        "*fine*: values that are taken nevertheless, beside `null`; *empty* is `false`, 0, and a",
        "text, list or object with nothing in it.",
        "",
        *_table_of_others((*ROUTES, MESSAGES, *TOKEN_ROUTES)),
        "",
        "## Messages",
        "",
        f"- {MESSAGES.name}: `POST {MESSAGES.path}`; `POST {MESSAGES.path}/count_tokens` takes",
        "  the same, and needs no `max_tokens`.",
        "",
        "What becomes of them is in [http-api.md](http-api.md#messages).",
        "",
        *_table((MESSAGES,)),
        "",
        "## Ollama",
        "",
        *(f"- {route.name}: `POST {route.path}`" for route in OLLAMA),
        "",
        "What becomes of them is in [http-api.md](http-api.md#ollama).",
        "",
        *_table(OLLAMA),
        "",
        *_table_of_others(OLLAMA),
        "",
        "Beside those above, `options` may have:",
        "",
        *_table_of_others((OPTIONS,)),
        "",
        "## Other routes",
        "",
        *(f"- {route.name}: `POST {route.path}`" for route in OTHER_ROUTES),
        "",
        *_table(OTHER_ROUTES),
    ]
    return "\n".join(lines) + "\n"


def _table(routes: Sequence[BodyRoute]) -> Iterator[str]:
    """What has an effect somewhere."""
    fields = _fields_of(routes)
    heads = " | ".join(route.name for route in routes)
    yield f"| field | {heads} | values | default |"
    yield "|---" * (len(routes) + 3) + "|"
    names = list(dict.fromkeys(name for of_route in fields.values() for name in of_route))
    for name in sorted(names, key=lambda name: name not in _FIRST):
        cells = " | ".join(_cell(route, fields[route.name], name) for route in routes)
        values = _merged({route.name: fields[route.name].get(name) for route in routes})
        default = _merged(
            {r.name: _default(r.name, name) if name in fields[r.name] else None for r in routes}
        )
        yield f"| `{name}` | {cells} | {values} | {default} |"


def _table_of_others(routes: Sequence[BodyRoute]) -> Iterator[str]:
    """What is known, and has an effect not everywhere."""
    fields = _fields_of(routes)
    heads = " | ".join(route.name for route in routes)
    yield f"| field | {heads} | fine |"
    yield "|---" * (len(routes) + 2) + "|"
    others = {name for route in routes for name in route.refused.keys() | route.ignored}
    for name in sorted(others):
        cells = " | ".join(_cell(route, fields[route.name], name) for route in routes)
        fine = _merged({r.name: _fine(r.refused, name) for r in routes})
        yield f"| `{name}` | {cells} | {fine} |"


def _fields_of(routes: Sequence[BodyRoute]) -> dict[str, dict[str, str]]:
    schemas = body_schemas()
    return {route.name: dict(_fields(schemas, route)) for route in routes}


def _fields(schemas: dict[str, Any], route: BodyRoute) -> Iterator[tuple[str, str]]:
    """Names and values of what has an effect; those of an object that is always the same too."""
    for name, schema in schemas[route.schema]["properties"].items():
        if name == "sampling_params":
            yield name, "object of sampling fields, or a list with one for each prompt"
            continue
        options = [option for option in schema.get("anyOf", ()) if option != {"type": "null"}]
        is_one = len(options) == 1 and "$ref" in options[0]
        nested = schemas[options[0]["$ref"].split("/")[-1]] if is_one else {}
        if nested.get("type") == "object":
            for inner, inner_schema in nested["properties"].items():
                yield f"{name}.{inner}", _values(inner_schema, schemas)
        else:
            yield name, _values(schema, schemas)


def _cell(route: BodyRoute, fields: Mapping[str, str], name: str) -> str:
    if any(field == name or field.startswith(f"{name}.") for field in fields):
        return "partly" if name in route.refused else "yes"
    if name in route.refused:
        return "refused"
    return "ignored" if name in route.ignored else ""


def _default(route: str, name: str) -> str:
    for key in (f"{route} {name}", name):
        if key in DEFAULTS:
            return f"`{json.dumps(DEFAULTS[key])}`"
        if key in DEFAULT_WORDS:
            return DEFAULT_WORDS[key]
    return "none"


def _fine(refused: Refused, name: str) -> str | None:
    if name not in refused:
        return None
    fine = [probe for probe in _PROBES if not refused[name](probe)]
    words = [f"`{json.dumps(probe)}`" for probe in fine]
    if not any(refused[name](probe) for probe in _EMPTY):
        words.insert(0, "empty")
    return ", ".join(words) or None


def _merged(by_route: Mapping[str, str | None]) -> str:
    """One text where all routes agree, else each with its routes."""
    routes_of: dict[str, list[str]] = {}
    for route, text in by_route.items():
        if text is not None:
            routes_of.setdefault(text, []).append(route)
    if len(routes_of) <= 1:
        return next(iter(routes_of), "")
    return "; ".join(f"{', '.join(routes)}: {text}" for text, routes in routes_of.items())


def _values(schema: dict[str, Any], schemas: dict[str, Any]) -> str:
    """A JSON Schema in a few words."""
    if "$ref" in schema:
        return _values(schemas[schema["$ref"].split("/")[-1]], schemas)
    if "anyOf" in schema:
        options = [o for o in schema["anyOf"] if o != {"type": "null"}]
        return " or ".join(dict.fromkeys(_values(option, schemas) for option in options))
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    match schema.get("type"):
        case "boolean":
            return "`true`, `false`"
        case "number" | "integer" as kind:
            return f"{kind} {_bounds(schema)}".rstrip()
        case "string":
            return "text" + _sized(schema, "Length", "characters")
        case "array":
            items = _values(schema.get("items", {}), schemas)
            return f"list of {items}" + _sized(schema, "Items", "items")
        case "object":
            return "object"
    return "any"


def _bounds(schema: Mapping[str, Any]) -> str:
    low, above, high = (schema.get(key) for key in ("minimum", "exclusiveMinimum", "maximum"))
    if above is not None:
        return f"above {above}" if high is None else f"above {above}, to {high}"
    if low is None:
        return ""
    return f"from {low}" if high is None else f"{low} to {high}"


def _sized(schema: Mapping[str, Any], kind: str, unit: str) -> str:
    low, high = schema.get(f"min{kind}"), schema.get(f"max{kind}")
    if high is None:
        return ""
    return f" ({low or 0} to {high} {unit})"


if __name__ == "__main__":
    sys.stdout.write(api_table())
