"""What operations of the OpenAPI document have in common, and pieces of its request bodies."""

from __future__ import annotations

from typing import Any

from frontend.fields.sampling_fields import MAX_STOP_CHARS
from frontend.openapi.answers import event_schema, schema_ref
from shared.subjects import JOB_CLASSES

_SECONDS = {"type": "number", "minimum": 0}
_HEADERS = {
    "X-Request-Timeout": ("seconds for waiting and running together", _SECONDS),
    "X-Resume-Grace": ("seconds that a request runs on without its client", _SECONDS),
    "X-Job-Class": ("batch waits for interactive", {"enum": list(JOB_CLASSES)}),
    "Idempotency-Key": (
        "the same key and body are one generation",
        {"type": "string", "pattern": "^[!-~]{1,255}$"},
    ),
}
ERRORS = {
    400: "the request is wrong; `param` names the field",
    401: "the API key is missing or unknown",
    403: "the page of another site, or a name that is not this server's",
    404: "no such model, stream or path",
    408: "the deadline has passed, or the body did not arrive in time",
    409: "the idempotency key or the event id belongs to something else",
    413: "the body is too large",
    415: "the body is compressed, or a form that a browser sends",
    429: "the queue is full, or a limit is reached; Retry-After says when to come back",
    499: "aborted",
    500: "the engine failed the request, or it is poison",
    503: "NATS does not answer, the frontend is shutting down, or nobody serves the model",
}
Schema = dict[str, Any]

SOME_TEXT: Schema = {"type": "string", "minLength": 1}
STOP_STRING: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS}


def start_of(operation_id: str, body: str, answer: str) -> dict[str, Any]:
    """An operation that generates; streamed when the body says so."""
    headers = [
        {"name": name, "in": "header", "description": text, "schema": schema}
        for name, (text, schema) in _HEADERS.items()
    ]
    return operation_of(
        operation_id, answer, body=schema_ref(body), parameters=headers, streams=True
    )


def operation_of(
    operation_id: str,
    answer: str,
    *,
    body: dict[str, Any] | None = None,
    parameters: list[dict[str, Any]] | None = None,
    streams: bool = False,
) -> dict[str, Any]:
    """`answer`: the name of its schema; `body`: the schema itself. All may end in all errors."""
    content: dict[str, Any] = {"application/json": {"schema": schema_ref(answer)}}
    if streams:
        content["text/event-stream"] = {"schema": {}, **event_schema(answer)}
    operation: dict[str, Any] = {
        "operationId": operation_id,
        "parameters": parameters or [],
        "responses": {"200": content_of(content)}
        | {str(status): _error(text) for status, text in ERRORS.items()},
    }
    if body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": body}},
        }
    return operation


def content_of(content: dict[str, Any]) -> dict[str, Any]:
    """The content of an answer, by media type."""
    return {"description": "the answer", "content": content}


def _error(text: str) -> dict[str, Any]:
    return {
        "description": text,
        "content": {"application/json": {"schema": schema_ref("ErrorAnswer")}},
    }


def optional(*options: Schema) -> Schema:
    """One of these, or null."""
    return {"anyOf": [*options, {"type": "null"}]}


def list_of(item: Schema, **bounds: int) -> Schema:
    """A list of so many as `bounds` say."""
    return {"type": "array", "items": item, **bounds}


def object_with(required: Schema, more: Schema | None = None) -> Schema:
    """An object with these fields, and more that may be missing."""
    return {"type": "object", "properties": required | (more or {}), "required": list(required)}
