"""The OpenAPI document of the HTTP surface."""

from __future__ import annotations

from typing import Any

from frontend.openapi.answers import answer_schemas, event_schema
from frontend.openapi.bodies import body_schemas
from frontend.routes.api_route import (
    CHAT_PATHS,
    EMBEDDING_PATHS,
    MODEL_PATHS,
    RERANK_PATHS,
    RESPONSE_PATHS,
    SCORE_PATHS,
)
from frontend.stored.files.file_record import MADE, UPLOADED
from frontend.stored.kept_responses import MAX_PAGE
from shared.status.health import LIVE_PATH, READY_PATH
from shared.subjects import JOB_CLASSES

_SECONDS = {"type": "number", "minimum": 0}
_TEXT = {"schema": {"type": "string"}}
_HEADERS = {
    "X-Request-Timeout": ("seconds for waiting and running together", _SECONDS),
    "X-Resume-Grace": ("seconds that a request runs on without its client", _SECONDS),
    "X-Job-Class": ("batch waits for interactive", {"enum": list(JOB_CLASSES)}),
    "Idempotency-Key": (
        "the same key and body are one generation",
        {"type": "string", "pattern": "^[!-~]{1,255}$"},
    ),
}
_ERRORS = {
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
_RID = {
    "name": "rid",
    "in": "path",
    "required": True,
    "description": "`x-request-id` of the first answer",
    "schema": {"type": "string"},
}
_STREAM_QUERY = [
    {"name": "stream", "in": "query", "schema": {"enum": ["true", "false", "1", "0"]}},
    {"name": "last_event_id", "in": "query", "schema": {"type": "string"}},
    {"name": "Last-Event-ID", "in": "header", "schema": {"type": "string"}},
]
_RESPONSE_ID = {
    "name": "response_id",
    "in": "path",
    "required": True,
    "schema": {"type": "string"},
}
_EVENT_QUERY = [
    {"name": "stream", "in": "query", "schema": {"enum": ["true", "false", "1", "0"]}},
    {"name": "starting_after", "in": "query", "schema": {"type": "integer", "minimum": 0}},
]
_PAGE_QUERY = [
    {
        "name": "limit",
        "in": "query",
        "schema": {"type": "integer", "minimum": 1, "maximum": MAX_PAGE},
    },
    {"name": "order", "in": "query", "schema": {"enum": ["asc", "desc"]}},
    {"name": "after", "in": "query", "schema": {"type": "string"}},
]
_ABORT_BODY = {
    "type": "object",
    "properties": {"rid": {"type": "string", "minLength": 1}},
    "required": ["rid"],
}
_FILE_ID = {"name": "file_id", "in": "path", "required": True, "schema": {"type": "string"}}
_BATCH_ID = _FILE_ID | {"name": "batch_id"}
_MODEL_QUERY = {"name": "model", "in": "query", "schema": {"type": "string"}}
_NAME = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}


def openapi_document(version: str) -> dict[str, Any]:
    """OpenAPI 3.1, made from the types that read the bodies and the ranges that are checked."""
    paths: dict[str, dict[str, Any]] = {
        **_twice(CHAT_PATHS, "post", _start("chat", "ChatBody", "ChatCompletion")),
        "/v1/completions": {"post": _start("completion", "CompletionBody", "Completion")},
        **_twice(EMBEDDING_PATHS, "post", _start("embedding", "EmbeddingBody", "EmbeddingList")),
        **{path: {"post": _start(_id(path), "ScoreBody", "ScoreList")} for path in SCORE_PATHS},
        **{path: {"post": _start(_id(path), "RerankBody", "Ranking")} for path in RERANK_PATHS},
        **_twice(RESPONSE_PATHS, "post", _start("create_response", "ResponseBody", "Response")),
        "/v1/responses/{response_id}": {
            "get": _operation(
                "get_response", "Response", parameters=[_RESPONSE_ID, *_EVENT_QUERY], streams=True
            ),
            "delete": _operation("delete_response", "ResponseDeleted", parameters=[_RESPONSE_ID]),
        },
        "/v1/responses/{response_id}/cancel": {
            "post": _operation("cancel_response", "Response", parameters=[_RESPONSE_ID])
        },
        "/v1/responses/{response_id}/input_items": {
            "get": _operation(
                "list_input_items", "InputItems", parameters=[_RESPONSE_ID, *_PAGE_QUERY]
            )
        },
        "/invocations": {"post": _invocation()},
        "/generate": {"post": _start("generate", "GenerateBody", "Generated")},
        "/v1/streams/{rid}": {
            "get": _resume(),
            "delete": _operation("erase", "Erased", parameters=[_RID]),
        },
        "/v1/streams/{rid}/path": {"get": _operation("path", "RequestPath", parameters=[_RID])},
        "/abort_request": {"post": _operation("abort", "Aborted", body=_ABORT_BODY)},
        **_message_paths(),
        **_ollama_paths(),
        **_token_paths(),
        "/v1/loads": {"get": _operation("loads", "Loads", parameters=[_MODEL_QUERY])},
        "/cluster": {"get": _operation("cluster", "ClusterView")},
        "/cluster/events": {"get": _cluster_events()},
        **_file_paths(),
        **_batch_paths(),
        **_twice(MODEL_PATHS, "get", _operation("list_models", "ModelList")),
        "/v1/models/{name}": {"get": _operation("get_model", "Model", parameters=[_NAME])},
    }
    for path, answer in _OPEN.items():
        paths[path] = {"get": _operation(_id(path), answer) | {"security": []}}
    for path in _HEALTH_PATHS:
        not_well = {"application/json": {"schema": _schema_ref("Health")}}
        paths[path]["get"]["responses"]["503"] = _content(not_well)
    paths["/"] = {
        "get": _operation("page", "")
        | {"security": [], "responses": {"200": _content({"text/html": _TEXT})}}
    }
    library = _operation("page_library", "", parameters=[_NAME])
    types = ("text/javascript", "text/css", "text/plain", "font/woff2")
    library["responses"]["200"] = _content(dict.fromkeys(types, _TEXT))
    paths["/page/{name}"] = {"get": library | {"security": []}}
    paths["/metrics"] = {
        "get": _operation("metrics", "") | {"responses": {"200": _content({"text/plain": _TEXT})}}
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "jetflock", "version": version},
        "paths": paths,
        "components": {
            "schemas": body_schemas() | answer_schemas(),
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "anthropic_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [
            {},
            {"key": []},
            {"anthropic_key": []},
        ],  # a server without keys is open to all
    }


def _twice(
    paths: tuple[str, str], method: str, operation: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """An operation at its path, and at the one without /v1."""
    with_v1, without = paths
    name = f"{operation['operationId']}_without_v1"
    return {
        with_v1: {method: operation},
        without: {method: {**operation, "operationId": name}},
    }


def _invocation() -> dict[str, Any]:
    """The body and the answer of one of several APIs."""
    operation = _start("invoke", "ChatBody", "ChatCompletion")
    bodies = ("ChatBody", "CompletionBody", "EmbeddingBody", "ScoreBody", "RerankBody")
    answers = ("ChatCompletion", "Completion", "EmbeddingList", "ScoreList", "Ranking")
    content = operation["requestBody"]["content"]["application/json"]
    content["schema"] = {"anyOf": [_schema_ref(body) for body in bodies]}
    answer = operation["responses"]["200"]["content"]["application/json"]
    answer["schema"] = {"anyOf": [_schema_ref(name) for name in answers]}
    return operation


def _resume() -> dict[str, Any]:
    operation = _operation("resume", "Answer", parameters=[_RID, *_STREAM_QUERY], streams=True)
    operation["responses"]["200"]["content"]["application/x-ndjson"] = {"schema": {}}
    return operation


def _cluster_events() -> dict[str, Any]:
    operation = _operation("cluster_events", "")
    operation["responses"]["200"] = _content({"text/event-stream": {"schema": {}}})
    return operation


def _message_paths() -> dict[str, dict[str, Any]]:
    paths = {
        "/v1/messages": {"post": _start("create_message", "MessageBody", "Message")},
        "/v1/messages/count_tokens": {
            "post": _operation("count_tokens", "MessageTokens", body=_schema_ref("CountBody"))
        },
    }
    return _with_errors(paths, "MessageError")


def _ollama_paths() -> dict[str, dict[str, Any]]:
    paths = {
        "/api/chat": {"post": _start("ollama_chat", "OllamaChatBody", "OllamaChat")},
        "/api/generate": {
            "post": _start("ollama_generate", "OllamaGenerateBody", "OllamaGenerated")
        },
        "/api/embed": {"post": _start("ollama_embed", "OllamaEmbedBody", "OllamaEmbeddings")},
        "/api/show": {
            "post": _operation("ollama_show", "OllamaShown", body=_schema_ref("OllamaShowBody"))
        },
        "/api/tags": {"get": _operation("ollama_tags", "OllamaTags")},
        "/api/ps": {"get": _operation("ollama_running", "OllamaRunning")},
        "/api/version": {"get": _operation("ollama_version", "OllamaVersion")},
    }
    for path in ("/api/chat", "/api/generate"):
        content = paths[path]["post"]["responses"]["200"]["content"]
        content["application/x-ndjson"] = content.pop("text/event-stream")
    del paths["/api/embed"]["post"]["responses"]["200"]["content"]["text/event-stream"]
    return _with_errors(paths, "OllamaError")


def _with_errors(paths: dict[str, dict[str, Any]], schema: str) -> dict[str, dict[str, Any]]:
    """In the shape of another API."""
    for path in paths.values():
        for operation in path.values():
            for status in _ERRORS:
                content = operation["responses"][str(status)]["content"]
                content["application/json"] = {"schema": _schema_ref(schema)}
    return paths


def _token_paths() -> dict[str, dict[str, Any]]:
    model = _MODEL_QUERY
    return {
        "/tokenize": {
            "post": _operation("tokenize", "Tokenized", body=_schema_ref("TokenizeBody"))
        },
        "/detokenize": {
            "post": _operation("detokenize", "Detokenized", body=_schema_ref("DetokenizeBody"))
        },
        "/apply-template": {
            "post": _operation("apply_template", "Templated", body=_schema_ref("TemplateBody"))
        },
        "/v1/tokenizer_info": {
            "get": _operation("tokenizer_info", "TokenizerInfo", parameters=[model])
        },
        "/props": {"get": _operation("props", "Props", parameters=[model])},
        "/tokenizer_info": {
            "get": _operation("tokenizer_info_at_the_root", "TokenizerInfo", parameters=[model])
        },
    }


def _id(path: str) -> str:
    """Of an operation, where the path says what it does."""
    return path.strip("/").replace("/", "_").replace(".", "_")


def _file_paths() -> dict[str, dict[str, Any]]:
    upload = _operation("upload_file", "File")
    upload["requestBody"] = {
        "required": True,
        "content": {"multipart/form-data": {"schema": _schema_ref("FileForm")}},
    }
    content = _operation("file_content", "File", parameters=[_FILE_ID])
    anything = {"schema": {"type": "string", "format": "binary"}}
    content["responses"]["200"] = _content(
        {"application/jsonl": anything, "application/octet-stream": anything}
    )
    purpose = {"name": "purpose", "in": "query", "schema": {"enum": [UPLOADED, MADE]}}
    return {
        "/v1/files": {
            "post": upload,
            "get": _operation("list_files", "FileList", parameters=[*_page(10_000), purpose]),
        },
        "/v1/files/{file_id}": {
            "get": _operation("get_file", "File", parameters=[_FILE_ID]),
            "delete": _operation("delete_file", "FileDeleted", parameters=[_FILE_ID]),
        },
        "/v1/files/{file_id}/content": {"get": content},
    }


def _batch_paths() -> dict[str, dict[str, Any]]:
    body = _schema_ref("BatchBody")
    return {
        "/v1/batches": {
            "post": _operation("create_batch", "Batch", body=body),
            "get": _operation("list_batches", "BatchList", parameters=_page(100)),
        },
        "/v1/batches/{batch_id}": {"get": _operation("get_batch", "Batch", parameters=[_BATCH_ID])},
        "/v1/batches/{batch_id}/cancel": {
            "post": _operation("cancel_batch", "Batch", parameters=[_BATCH_ID])
        },
    }


def _page(max_limit: int) -> list[dict[str, Any]]:
    limit = {"type": "integer", "minimum": 1, "maximum": max_limit}
    return [
        {"name": "limit", "in": "query", "schema": limit},
        {"name": "order", "in": "query", "schema": {"enum": ["asc", "desc"]}},
        {"name": "after", "in": "query", "schema": {"type": "string"}},
    ]


_HEALTH_PATHS = ("/health", "/live", "/ready", "/ping", LIVE_PATH, READY_PATH)
_OPEN = {
    **dict.fromkeys(_HEALTH_PATHS, "Health"),
    "/version": "Version",
    "/openapi.json": "Document",
}


def _start(operation_id: str, body: str, answer: str) -> dict[str, Any]:
    """An operation that generates; streamed when the body says so."""
    headers = [
        {"name": name, "in": "header", "description": text, "schema": schema}
        for name, (text, schema) in _HEADERS.items()
    ]
    body_schema = {"$ref": f"#/components/schemas/{body}"}
    return _operation(operation_id, answer, body=body_schema, parameters=headers, streams=True)


def _operation(
    operation_id: str,
    answer: str,
    *,
    body: dict[str, Any] | None = None,
    parameters: list[dict[str, Any]] | None = None,
    streams: bool = False,
) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": _schema_ref(answer)}}
    if streams:
        content["text/event-stream"] = {"schema": {}, **event_schema(answer)}
    operation: dict[str, Any] = {
        "operationId": operation_id,
        "parameters": parameters or [],
        "responses": {"200": _content(content)}
        | {str(status): _error(text) for status, text in _ERRORS.items()},
    }
    if body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": body}},
        }
    return operation


def _schema_ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _content(content: dict[str, Any]) -> dict[str, Any]:
    return {"description": "the answer", "content": content}


def _error(text: str) -> dict[str, Any]:
    return {
        "description": text,
        "content": {"application/json": {"schema": _schema_ref("ErrorAnswer")}},
    }
