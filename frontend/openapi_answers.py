"""JSON Schema of whole answers; the events of a stream have the same fields in pieces."""

from __future__ import annotations

from typing import Any

_COUNT = {"type": "integer", "minimum": 0}
_TEXT = {"type": "string"}
_OPTIONAL_TEXT = {"type": ["string", "null"]}


def _object(properties: dict[str, Any], *optional: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
    }


def _list_of(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _choice(**own: dict[str, Any]) -> dict[str, Any]:
    return _object(
        {"index": _COUNT, **own, "logprobs": {"type": ["object", "null"]}, "finish_reason": _TEXT}
    )


def _completion(kind: str, choice: dict[str, Any]) -> dict[str, Any]:
    return _object(
        {
            "id": _TEXT,
            "object": {"const": kind},
            "created": _COUNT,
            "model": _TEXT,
            "system_fingerprint": _OPTIONAL_TEXT,
            "choices": _list_of(choice),
            "usage": _ref("Usage"),
        }
    )


def answer_schemas() -> dict[str, dict[str, Any]]:
    """By name, for the components of an OpenAPI document."""
    message = _object(
        {"role": {"const": "assistant"}, "content": _OPTIONAL_TEXT, "refusal": _OPTIONAL_TEXT}
    )
    usage = _object(
        {
            "prompt_tokens": _COUNT,
            "completion_tokens": _COUNT,
            "total_tokens": _COUNT,
            "prompt_tokens_details": _object({"cached_tokens": _COUNT}),
        },
        "completion_tokens",
    )
    embedding = _object(
        {
            "object": {"const": "embedding"},
            "index": _COUNT,
            "embedding": {"anyOf": [_list_of({"type": "number"}), _TEXT]},
        }
    )
    generated = _object(
        {
            "text": _TEXT,
            "output_ids": _list_of(_COUNT),
            "meta_info": {"type": "object", "required": ["id", "finish_reason"]},
            "index": _COUNT,
        },
        "index",
    )
    model = _object(
        {
            "id": _TEXT,
            "object": {"const": "model"},
            "created": _COUNT,
            "owned_by": _TEXT,
            "root": _TEXT,
            "parent": _OPTIONAL_TEXT,
            "max_model_len": _COUNT,
            "tasks": _list_of({"enum": ["generate", "embed"]}),
        }
    )
    error = _object(
        {"message": _TEXT, "type": _TEXT, "param": _OPTIONAL_TEXT, "code": _OPTIONAL_TEXT}
    )
    return {
        "Usage": usage,
        "ChatCompletion": _completion("chat.completion", _choice(message=message)),
        "Completion": _completion("text_completion", _choice(text=_TEXT)),
        "EmbeddingList": _object(
            {
                "object": {"const": "list"},
                "data": _list_of(embedding),
                "model": _TEXT,
                "usage": _ref("Usage"),
            }
        ),
        "Generated": {"anyOf": [generated, _list_of(generated)]},
        "Answer": {
            "anyOf": [
                _ref(name)
                for name in ("ChatCompletion", "Completion", "EmbeddingList", "Generated")
            ]
        },
        "Model": model,
        "ModelList": _object({"object": {"const": "list"}, "data": _list_of(_ref("Model"))}),
        "Aborted": _object({"rid": _TEXT, "num_aborted": _COUNT}),
        "Status": _object({"status": _TEXT}),
        "NotWell": _object({"status": _TEXT, "why": _list_of(_TEXT)}),
        "Version": _object({"version": _TEXT}),
        "Document": {"type": "object", "required": ["openapi", "paths"]},
        "Error": _object({"error": error}),
    }
