"""JSON Schema of the request bodies: the types that read them, and what is checked beyond types."""

from __future__ import annotations

from typing import Any

import msgspec

from frontend.fields.cache_fields import (
    KEEP_SECONDS,
    KEEP_TOKENS,
    MAX_SALT_CHARS,
    MAX_SESSION_CHARS,
)
from frontend.fields.field_ranges import RANGES, Range
from frontend.fields.pooled_fields import MAX_INPUTS
from frontend.fields.sampler_order import SAMPLER_LETTERS, SAMPLER_NAMES
from frontend.fields.sampling_fields import (
    MAX_STOP,
    MAX_STOP_CHARS,
    SamplingFields,
)
from frontend.images.source import DETAILS
from frontend.inference.admission.queue_timeout import FIELD as QUEUE_TIMEOUT
from frontend.jobs.client_request_id import FIELDS as CLIENT_ID_FIELDS
from frontend.jobs.client_request_id import PATTERN as CLIENT_ID_PATTERN
from frontend.jobs.dry_fields import MAX_BREAKER_CHARS, MAX_BREAKERS
from frontend.jobs.idempotency_key import FIELD as IDEMPOTENCY_KEY
from frontend.jobs.idempotency_key import MAX_KEY_CHARS
from frontend.openapi.file_form import file_form
from frontend.openapi.response_fields import RESPONSE_FIELDS
from frontend.stored.batches.batch_body import WINDOW_PATTERN, BatchBody
from frontend.stored.batches.batch_record import ENDPOINTS
from frontend.stored.files.file_record import SHORTEST_TTL_S
from frontend.surfaces.anthropic.body import MessageBody
from frontend.surfaces.chat.chat_request import ROLES, ChatBody
from frontend.surfaces.chat.reasoning import EFFORTS
from frontend.surfaces.completions.completion_request import MAX_PROMPTS, CompletionBody
from frontend.surfaces.embeddings.embedding_request import EmbeddingBody
from frontend.surfaces.generate.generate_request import ALIASES, GenerateBody
from frontend.surfaces.ollama.body import (
    OllamaChatBody,
    OllamaEmbedBody,
    OllamaGenerateBody,
    OllamaOptions,
    OllamaShowBody,
)
from frontend.surfaces.responses.request import INCLUDABLE, REFUSED, ResponseBody
from frontend.surfaces.scores.pair_request import MAX_INSTRUCTION_CHARS
from frontend.surfaces.scores.rerank_request import TOP_N, RerankBody
from frontend.surfaces.scores.score_request import ScoreBody
from frontend.surfaces.tokens.token_bodies import DetokenizeBody, TemplateBody, TokenizeBody
from frontend.surfaces.tools.tool_fields import MAX_TOOLS, NAME_PATTERN

_ID = {"type": "integer", "minimum": 0}
_TEXT = {"type": "string", "minLength": 1}
_TEXT_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
_IMAGE_URL = {
    "type": "object",
    "properties": {
        "url": {"type": "string", "description": "data: or https: URL of a PNG, JPEG, WebP or GIF"},
        "detail": {"enum": list(DETAILS)},
    },
    "required": ["url"],
}
_IMAGE_PART = {
    "type": "object",
    "properties": {"type": {"const": "image_url"}, "image_url": _IMAGE_URL},
    "required": ["type", "image_url"],
}
_TOOL_CALL = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "arguments": {"type": "string"}},
            "required": ["name"],
        },
    },
    "required": ["function"],
}
_OLLAMA_CALL = {
    "type": "object",
    "properties": {
        "function": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "arguments": {"type": "object"}},
            "required": ["name"],
        },
    },
    "required": ["function"],
}
_MESSAGE = {
    "type": "object",
    "properties": {
        "role": {"enum": sorted(ROLES)},
        "content": {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"anyOf": [_TEXT_PART, _IMAGE_PART]}},
                {"type": "null"},
            ]
        },
        "name": {"type": "string"},
        "tool_calls": {
            "anyOf": [{"type": "array", "items": _TOOL_CALL}, {"type": "null"}],
        },
        "tool_call_id": {"type": "string"},
    },
    "required": ["role"],
}
_FUNCTION_NAME = {"type": "string", "pattern": NAME_PATTERN}
_FUNCTION = {
    "type": "object",
    "properties": {
        "name": _FUNCTION_NAME,
        "description": {"type": ["string", "null"]},
        "parameters": {"type": ["object", "null"]},
        "strict": {"type": ["boolean", "null"]},
    },
    "required": ["name"],
}
_TOOL = {
    "type": "object",
    "properties": {"type": {"const": "function"}, "function": _FUNCTION},
    "required": ["type", "function"],
}
_NAMED_FUNCTION = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "properties": {"name": _FUNCTION_NAME},
            "required": ["name"],
        },
    },
    "required": ["type", "function"],
}
_ALLOWED_FUNCTIONS = {
    "type": "object",
    "properties": {
        "type": {"const": "allowed_tools"},
        "allowed_tools": {
            "type": "object",
            "properties": {
                "mode": {"enum": ["auto", "required"]},
                "tools": {"type": "array", "items": _NAMED_FUNCTION, "minItems": 1},
            },
            "required": ["mode", "tools"],
        },
    },
    "required": ["type", "allowed_tools"],
}


def _optional(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def _kind_of(*kinds: str, **fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"type": {"enum": list(kinds)}, **fields},
        "required": ["type", *fields],
    }


_TEXT_OR_BLOCKS = {"anyOf": [{"type": "string"}, {"type": "array", "items": _TEXT_PART}]}
_ANTHROPIC_IMAGE = {
    "anyOf": [
        _kind_of("base64", media_type={"type": "string"}, data={"type": "string"}),
        _kind_of("url", url={"type": "string"}),
    ]
}
_ANTHROPIC_BLOCK = {
    "anyOf": [
        _TEXT_PART,
        _kind_of("image", source=_ANTHROPIC_IMAGE),
        _kind_of("thinking", thinking={"type": "string"}),
        _kind_of(
            "tool_use",
            id={"type": "string"},
            name={"type": "string"},
            input={"type": "object"},
        ),
        _kind_of("tool_result", tool_use_id={"type": "string"}, content=_TEXT_OR_BLOCKS),
    ]
}
_ANTHROPIC_MESSAGE = {
    "type": "object",
    "properties": {
        "role": {"enum": ["user", "assistant", "system"]},
        "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": _ANTHROPIC_BLOCK}]},
    },
    "required": ["role", "content"],
}
_ANTHROPIC_TOOL = {
    "type": "object",
    "properties": {
        "type": {"enum": ["custom", None]},
        "name": _FUNCTION_NAME,
        "description": {"type": ["string", "null"]},
        "input_schema": {"type": "object"},
        "strict": {"type": ["boolean", "null"]},
    },
    "required": ["name", "input_schema"],
}
_ANTHROPIC_CHOICE = {
    "type": "object",
    "properties": {
        "type": {"enum": ["auto", "any", "tool", "none"]},
        "name": _FUNCTION_NAME,
        "disable_parallel_tool_use": {"type": "boolean"},
    },
    "required": ["type"],
}
_STOP_STRING = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS}
_SESSION = {
    "anyOf": [{"type": "string", "minLength": 1, "maxLength": MAX_SESSION_CHARS}, {"type": "null"}]
}
# Beside the ranges of numbers; a field that is not here is as its type says.
_FIELDS: dict[str, dict[str, Any]] = {
    "messages": {"type": "array", "items": _MESSAGE, "minItems": 1},
    "stop": {
        "anyOf": [
            _STOP_STRING,
            {"type": "array", "items": _STOP_STRING, "maxItems": MAX_STOP},
            {"type": "null"},
        ]
    },
    "dry_sequence_breakers": _optional(
        {
            "type": "array",
            "items": {"type": "string", "minLength": 1, "maxLength": MAX_BREAKER_CHARS},
            "minItems": 1,
            "maxItems": MAX_BREAKERS,
        }
    ),
    "samplers": {
        "anyOf": [
            {"type": "array", "items": {"enum": sorted(SAMPLER_NAMES)}, "uniqueItems": True},
            {"type": "string", "pattern": f"^[{''.join(SAMPLER_LETTERS)}]*$"},
            {"type": "null"},
        ]
    },
    "cache_salt": {
        "anyOf": [{"type": "string", "minLength": 1, "maxLength": MAX_SALT_CHARS}, {"type": "null"}]
    },
    **dict.fromkeys(("session_id", "prompt_cache_key"), _SESSION),
    "response_format": {"anyOf": [{"type": "object"}, {"type": "null"}]},
    "reasoning_effort": {"anyOf": [{"enum": list(EFFORTS)}, {"type": "null"}]},
    "tools": {
        "anyOf": [{"type": "array", "items": _TOOL, "maxItems": MAX_TOOLS}, {"type": "null"}]
    },
    "query": _TEXT,
    "instruction": {
        "anyOf": [
            {"type": "string", "minLength": 1, "maxLength": MAX_INSTRUCTION_CHARS},
            {"type": "null"},
        ]
    },
    "tool_choice": {
        "anyOf": [
            {"enum": ["none", "auto", "required"]},
            _NAMED_FUNCTION,
            _ALLOWED_FUNCTIONS,
            {"type": "null"},
        ]
    },
}
_CLIENT_ID: dict[str, Any] = {
    "anyOf": [{"type": "string", "pattern": CLIENT_ID_PATTERN}, {"type": "null"}]
}
# Read before the route's own fields.
_OF_EVERY_BODY: dict[str, dict[str, Any]] = {
    QUEUE_TIMEOUT: {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "null"}]},
    IDEMPOTENCY_KEY: {
        "anyOf": [{"type": "string", "minLength": 1, "maxLength": MAX_KEY_CHARS}, {"type": "null"}]
    },
    **dict.fromkeys(CLIENT_ID_FIELDS, _CLIENT_ID),
}
_MORE_RANGES = {
    "max_completion_tokens": RANGES["max_tokens"],
    **{alias: RANGES[name] for alias, name in ALIASES.items() if name in RANGES},
    "max_output_tokens": Range(low=1),
    "top_logprobs_num": RANGES["top_logprobs"],
    "dimensions": Range(low=1),
    "top_n": TOP_N,
}
_STARTING = (
    "ResponseBody",
    "ChatBody", "CompletionBody", "EmbeddingBody", "GenerateBody", "ScoreBody", "RerankBody",
)  # fmt: skip


def body_schemas() -> dict[str, dict[str, Any]]:
    """By name, for the components of an OpenAPI document."""
    _, schemas = msgspec.json.schema_components(
        [
            ChatBody,
            CompletionBody,
            EmbeddingBody,
            ScoreBody,
            RerankBody,
            GenerateBody,
            BatchBody,
            ResponseBody,
            TokenizeBody,
            DetokenizeBody,
            TemplateBody,
            MessageBody,
            OllamaChatBody,
            OllamaGenerateBody,
            OllamaEmbedBody,
            OllamaShowBody,
            OllamaOptions,
            SamplingFields,
        ],
        ref_template="#/components/schemas/{name}",
    )
    sampling = schemas.pop("SamplingFields")["properties"]
    nested = {"sampling_params": {"anyOf": [{"$ref": "#/components/schemas/SamplingParams"}]}}
    new_names = {alias: sampling[name] for alias, name in ALIASES.items()}
    schemas["SamplingParams"] = {"type": "object", "properties": sampling | new_names}
    schemas["GenerateBody"]["properties"] |= sampling | new_names | nested
    for name in _STARTING:
        schemas[name]["properties"] |= _OF_EVERY_BODY
    for schema in schemas.values():
        for name, field in schema.get("properties", {}).items():
            schema["properties"][name] = _checked(name, field)
    _require(schemas["ChatBody"], "model", "messages")
    _require(schemas["CompletionBody"], "model", "prompt")
    _require(schemas["EmbeddingBody"], "model", "input")
    schemas["RerankBody"]["properties"]["documents"] = {
        "type": "array",
        "items": {"anyOf": [_TEXT, {"$ref": "#/components/schemas/RerankDocument"}]},
        "minItems": 1,
        "maxItems": MAX_INPUTS,
    }
    _require(schemas["RerankBody"], "model", "query", "documents")
    _require(schemas["ScoreBody"], "model")
    schemas["ScoreBody"]["allOf"] = [
        {"oneOf": [{"required": [name]} for name in names]}
        for names in (("text_1", "queries"), ("text_2", "items"))
    ]
    for name in ("text_1", "text_2", "queries", "items"):
        schemas["ScoreBody"]["properties"][name] = {"anyOf": _texts(MAX_INPUTS)}
    _require(schemas["ResponseBody"], "model", "input")
    of_response = schemas["ResponseBody"]["properties"]
    for name in REFUSED.keys() & of_response.keys():
        del of_response[name]
    of_response |= RESPONSE_FIELDS
    of_response["include"] = {
        "anyOf": [{"type": "array", "items": {"enum": list(INCLUDABLE)}}, {"type": "null"}]
    }
    schemas["CompletionBody"]["properties"]["prompt"] = _prompts(MAX_PROMPTS)
    schemas["EmbeddingBody"]["properties"]["input"] = _prompts(MAX_INPUTS)
    of_generate = schemas["GenerateBody"]["properties"]
    of_generate["text"] = {"anyOf": _texts(MAX_PROMPTS)}
    of_generate["input_ids"] = {"anyOf": _ids(MAX_PROMPTS)}
    schemas["GenerateBody"]["oneOf"] = [{"required": ["text"]}, {"required": ["input_ids"]}]
    schemas["TokenizeBody"]["oneOf"] = [{"required": ["prompt"]}, {"required": ["messages"]}]
    schemas["DetokenizeBody"]["properties"]["tokens"] = {"type": "array", "items": _ID}
    schemas["DetokenizeBody"]["required"] = ["tokens"]
    _require(schemas["TemplateBody"], "messages")
    schemas |= _message_bodies(schemas["MessageBody"])
    _complete_ollama_bodies(schemas)
    of_batch = schemas["BatchBody"]["properties"]
    of_batch["endpoint"] = {"enum": list(ENDPOINTS)}
    of_batch["completion_window"] = {"type": "string", "pattern": WINDOW_PATTERN}
    schemas["KeepPrefixField"]["properties"] = {
        "tokens": {"anyOf": [{"type": "integer", **KEEP_TOKENS.json_schema()}, {"type": "null"}]},
        "seconds": {"anyOf": [{"type": "number", **KEEP_SECONDS.json_schema()}, {"type": "null"}]},
    }
    schemas["FileExpiry"]["properties"] = {
        "anchor": {"const": "created_at"},
        "seconds": {"type": "integer", "minimum": SHORTEST_TTL_S},
    }
    schemas["FileForm"] = file_form()
    return schemas


def _message_bodies(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Of a message, and of its tokens' count, which needs no limit of the answer."""
    fields = schema["properties"] | {
        "model": {"type": "string"},
        "system": _optional(_TEXT_OR_BLOCKS),
        "messages": {"type": "array", "minItems": 1, "items": _ANTHROPIC_MESSAGE},
        "stop_sequences": _optional({"type": "array", "items": _STOP_STRING, "maxItems": MAX_STOP}),
        "tools": _optional({"type": "array", "items": _ANTHROPIC_TOOL, "maxItems": MAX_TOOLS}),
        "tool_choice": _optional(_ANTHROPIC_CHOICE),
        "thinking": _optional(_kind_of("adaptive", "disabled", "enabled")),
        "output_config": _optional({"type": "object"}),
    }
    count = {**schema, "properties": fields, "required": ["model", "messages"]}
    limit = fields["max_tokens"]["anyOf"][0]
    fields = fields | {"max_tokens": limit} | _OF_EVERY_BODY
    required = ["model", "messages", "max_tokens"]
    return {
        "CountBody": {**count, "title": "CountBody"},
        "MessageBody": {**schema, "properties": fields, "required": required},
    }


def _complete_ollama_bodies(schemas: dict[str, dict[str, Any]]) -> None:
    images = _optional({"type": "array", "items": {"type": "string", "minLength": 1}})
    message = {
        "type": "object",
        "properties": {
            "role": {"enum": ["system", "user", "assistant", "tool"]},
            "content": {"type": ["string", "null"]},
            "thinking": {"type": ["string", "null"]},
            "images": images,
            "tool_calls": _optional({"type": "array", "items": _OLLAMA_CALL}),
            "tool_name": {"type": ["string", "null"]},
        },
        "required": ["role"],
    }
    options = {"$ref": "#/components/schemas/OllamaOptions"}
    for name in ("OllamaChatBody", "OllamaGenerateBody"):
        fields = schemas[name]["properties"]
        fields["options"] = _optional(options)
        fields["think"] = _optional({"enum": [True, False, "low", "medium", "high", "max"]})
        fields["format"] = _optional({"anyOf": [{"enum": ["", "json"]}, {"type": "object"}]})
        fields |= _OF_EVERY_BODY
    schemas["OllamaEmbedBody"]["properties"] |= _OF_EVERY_BODY
    schemas["OllamaChatBody"]["properties"]["messages"] = {"type": "array", "items": message}
    schemas["OllamaGenerateBody"]["properties"]["images"] = images
    schemas["OllamaEmbedBody"]["properties"]["input"] = {"anyOf": _texts(MAX_INPUTS)}
    for name in ("OllamaChatBody", "OllamaGenerateBody", "OllamaEmbedBody", "OllamaShowBody"):
        _require(schemas[name], "model")
    _require(schemas["OllamaEmbedBody"], "model", "input")


def _checked(name: str, field: dict[str, Any]) -> dict[str, Any]:
    if name in _FIELDS:
        return _FIELDS[name]
    bounds = RANGES.get(name) or _MORE_RANGES.get(name)
    if bounds is None:
        return field
    return field | {
        "anyOf": [
            option | bounds.json_schema() if option.get("type") in ("number", "integer") else option
            for option in field["anyOf"]
        ]
    }


def _require(schema: dict[str, Any], *names: str) -> None:
    """In the struct everything may be missing, so that our own words say what is."""
    schema["required"] = list(names)
    for name in names:
        field = schema["properties"][name]
        options = [option for option in field.get("anyOf", []) if option != {"type": "null"}]
        if len(options) == 1:
            schema["properties"][name] = options[0]


def _prompts(max_prompts: int) -> dict[str, Any]:
    return {"anyOf": _texts(max_prompts) + _ids(max_prompts)}


def _texts(max_prompts: int) -> list[dict[str, Any]]:
    return [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": max_prompts}]


def _ids(max_prompts: int) -> list[dict[str, Any]]:
    ids = {"type": "array", "items": _ID, "minItems": 1}
    return [ids, {"type": "array", "items": ids, "minItems": 1, "maxItems": max_prompts}]
