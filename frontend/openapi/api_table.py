"""`python -m frontend.openapi.api_table > docs/api.md`: which route takes which field."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from frontend.fields.cache_fields import DEFAULT_KEEP_S
from frontend.fields.pooled_fields import POOLED_IGNORED
from frontend.fields.request_body import IGNORED, Refused
from frontend.openapi.bodies import body_schemas
from frontend.surfaces.anthropic import body as message_body
from frontend.surfaces.chat import chat_request
from frontend.surfaces.completions import completion_request
from frontend.surfaces.embeddings import embedding_request
from frontend.surfaces.generate import generate_request
from frontend.surfaces.ollama import body as ollama_body
from frontend.surfaces.responses import request as response_request
from frontend.surfaces.scores import rerank_request, score_request
from frontend.surfaces.tokens import token_bodies
from shared.protocol.reply import TextParams
from shared.protocol.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class BodyRoute:
    """A route with a body: a column."""

    name: str
    path: str
    schema: str  # of its body, among the components of the OpenAPI document
    refused: Refused
    ignored: frozenset[str] = IGNORED


ROUTES = (
    BodyRoute("chat", "/v1/chat/completions", "ChatBody", chat_request.REFUSED),
    BodyRoute("completions", "/v1/completions", "CompletionBody", completion_request.REFUSED),
    BodyRoute("generate", "/generate", "GenerateBody", generate_request.REFUSED),
    BodyRoute(
        "embeddings", "/v1/embeddings", "EmbeddingBody", embedding_request.REFUSED, POOLED_IGNORED
    ),
    BodyRoute("score", "/v1/score", "ScoreBody", score_request.REFUSED, POOLED_IGNORED),
    BodyRoute("rerank", "/v1/rerank", "RerankBody", rerank_request.REFUSED, POOLED_IGNORED),
    BodyRoute(
        "responses",
        "/v1/responses",
        "ResponseBody",
        response_request.REFUSED,
        response_request.IGNORED_HERE,
    ),
)
# Its fields have Anthropic's names and shapes: a table of its own.
MESSAGES = BodyRoute(
    "messages", "/v1/messages", "MessageBody", message_body.REFUSED, message_body.IGNORED
)
# And these have Ollama's.
OLLAMA = (
    BodyRoute("api/chat", "/api/chat", "OllamaChatBody", ollama_body.REFUSED, ollama_body.IGNORED),
    BodyRoute(
        "api/generate",
        "/api/generate",
        "OllamaGenerateBody",
        ollama_body.GENERATE_REFUSED,
        ollama_body.IGNORED,
    ),
    BodyRoute(
        "api/embed",
        "/api/embed",
        "OllamaEmbedBody",
        ollama_body.EMBED_REFUSED,
        ollama_body.EMBED_IGNORED,
    ),
)
OPTIONS = BodyRoute(
    "options",
    "/api/chat",
    "OllamaOptions",
    ollama_body.OPTIONS_REFUSED,
    ollama_body.OPTIONS_IGNORED,
)
# They generate nothing; of files the fields are those of a form.
TOKEN_ROUTES = (
    BodyRoute("tokenize", "/tokenize", "TokenizeBody", token_bodies.REFUSED, token_bodies.IGNORED),
    BodyRoute(
        "detokenize",
        "/detokenize",
        "DetokenizeBody",
        token_bodies.DETOKENIZE_REFUSED,
        token_bodies.DETOKENIZE_IGNORED,
    ),
    BodyRoute(
        "apply-template",
        "/apply-template",
        "TemplateBody",
        token_bodies.TEMPLATE_REFUSED,
        token_bodies.IGNORED,
    ),
)
OTHER_ROUTES = (
    BodyRoute("files", "/v1/files", "FileForm", {}, frozenset()),
    BodyRoute("batches", "/v1/batches", "BatchBody", {}, frozenset()),
    *TOKEN_ROUTES,
)

_SAMPLING = SamplingParams(max_tokens=0, seed=0)
_OF_SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "min_tokens", "ignore_eos", "typical_p", "xtc_probability",
    "xtc_threshold", "dynatemp_range", "dynatemp_exponent", "dry_multiplier", "dry_base",
    "dry_allowed_length", "dry_penalty_last_n",
)  # fmt: skip
# What leaving a field out, or null, is the same as; by field, or by route and field.
DEFAULTS: Mapping[str, Any] = {
    **{name: getattr(_SAMPLING, name) for name in _OF_SAMPLING},
    "min_new_tokens": _SAMPLING.min_tokens,
    "skip_special_tokens": TextParams().skip_special_tokens,
    "include_stop_str_in_output": TextParams().include_stop,
    "no_stop_trim": TextParams().include_stop,
    "n": 1,
    "priority": 0,
    "stream": False,
    "stream_options.include_usage": False,
    "stream_options.continuous_usage_stats": False,
    "echo": False,
    "return_token_ids": False,
    "prompt_cache_retention": "in_memory",
    "use_beam_search": False,
    "length_penalty": 1.0,
    "early_stopping": False,
    "return_tokens_as_token_ids": False,
    "return_logprob": False,
    "add_generation_prompt": True,
    "continue_final_message": False,
    "chat add_special_tokens": False,
    "completions add_special_tokens": True,
    "completions max_tokens": completion_request.DEFAULT_MAX_TOKENS,
    "generate max_tokens": generate_request.DEFAULT_MAX_TOKENS,
    "generate max_new_tokens": generate_request.DEFAULT_MAX_TOKENS,
    "encoding_format": "float",
    "return_documents": False,
    "chat logprobs": False,
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "include_reasoning": True,
    "separate_reasoning": True,
    "background": False,
    "responses store": True,
    "responses top_logprobs": 0,
    "responses text.format": {"type": "text"},
    "messages tool_choice": {"type": "auto"},
    "api/chat stream": True,
    "api/generate stream": True,
    "raw": False,
    "truncate": True,
    "options.num_predict": -1,
    **{f"options.{name}": getattr(_SAMPLING, name) for name in _OF_SAMPLING[:6]},
    "options.repeat_penalty": _SAMPLING.repetition_penalty,
}
_WORDS: Mapping[str, str] = {
    "model": "required",
    "generate model": "the only one",
    "messages": "required",
    "prompt": "required",
    "input": "required",
    "text": "or `input_ids`",
    "input_ids": "or `text`",
    "chat max_tokens": "the rest of the context",
    "max_completion_tokens": "`max_tokens`",
    "best_of": "`n`",
    "beam_width": "`n`",
    "keep_prefix.tokens": "all",
    "keep_prefix.seconds": f"{DEFAULT_KEEP_S:g}",
    "seed": "random",
    "sampling_seed": "random",
    "pooling": "the model's",
    "normalize": "the model's",
    "dimensions": "all",
    "text_1": "required, or `queries`",
    "text_2": "required, or `items`",
    "queries": "or `text_1`",
    "items": "or `text_2`",
    "query": "required",
    "rerank documents": "required",
    "instruction": "the template's",
    "use_activation": "the model's",
    "top_n": "all",
    "queue_timeout_s": "`--queue-timeout-s`",
    "max_output_tokens": "the rest of the context",
    "purpose": "required",
    "file": "required",
    "input_file_id": "required",
    "endpoint": "required",
    "completion_window": "required",
    "tokenize model": "the only one",
    "detokenize model": "the only one",
    "apply-template model": "the only one",
    "tokenize prompt": "or `messages`",
    "tokenize messages": "or `prompt`",
    "tokens": "required",
    "messages max_tokens": "required",
    "thinking": "the model's",
    "think": "the model's",
    "api/generate prompt": "required",
    "options.seed": "random",
}
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
            yield name, "object of sampling fields"
            continue
        references = [o["$ref"] for o in schema.get("anyOf", ()) if "$ref" in o]
        nested = schemas[references[0].split("/")[-1]] if references else {}
        if nested.get("type") == "object":
            for inner, inner_schema in nested["properties"].items():
                yield f"{name}.{inner}", _values(inner_schema, schemas)
        else:
            yield name, _values(schema, schemas)


def _cell(route: BodyRoute, fields: Mapping[str, str], name: str) -> str:
    if name in fields:
        return "partly" if name in route.refused else "yes"
    if name in route.refused:
        return "refused"
    return "ignored" if name in route.ignored else ""


def _default(route: str, name: str) -> str:
    for key in (f"{route} {name}", name):
        if key in DEFAULTS:
            return f"`{json.dumps(DEFAULTS[key])}`"
        if key in _WORDS:
            return _WORDS[key]
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
