"""The OpenAPI document of the HTTP surface."""

from __future__ import annotations

from typing import Any

from frontend.fields.field_ranges import RANGES
from frontend.inference.resuming.kept_streams import LIMIT, SINCE
from frontend.openapi.answers import answer_schemas, schema_ref
from frontend.openapi.bodies import body_schemas
from frontend.openapi.document_parts import ERRORS, content_of, operation_of, start_of
from frontend.routes.api_route import (
    AUDIO_PATHS,
    CHAT_BATCH_PATH,
    CHAT_PATHS,
    CLASS_PATHS,
    EMBEDDING_PATHS,
    MODEL_PATHS,
    POOLING_PATHS,
    RERANK_PATHS,
    RESPONSE_PATHS,
    SCORE_PATHS,
)
from frontend.stored.files.file_record import MADE, UPLOADED
from frontend.stored.kept_responses import MAX_PAGE
from shared.status.health import LIVE_PATH, READY_PATH

Paths = dict[str, dict[str, Any]]  # path -> method -> operation

_TEXT = {"schema": {"type": "string"}}
_RID = {
    "name": "rid",
    "in": "path",
    "required": True,
    "description": "`x-request-id` of the first answer",
    "schema": {"type": "string"},
}
_STREAM_QUERY = [
    {"name": "stream", "in": "query", "schema": {"enum": ["true", "false", "1", "0"]}},
    {"name": "watch", "in": "query", "schema": {"enum": ["true", "false", "1", "0"]}},
    {"name": "last_event_id", "in": "query", "schema": {"type": "string"}},
    {"name": "Last-Event-ID", "in": "header", "schema": {"type": "string"}},
]
_RESPONSE_ID = {
    "name": "response_id",
    "in": "path",
    "required": True,
    "schema": {"type": "string"},
}
_CONVERSATION_ID = _RESPONSE_ID | {"name": "conversation_id"}
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
_USAGE_QUERY: list[dict[str, Any]] = [
    _MODEL_QUERY,
    *(
        {"name": name, "in": "query", "schema": {"type": "string", "format": "date"}}
        for name in ("since", "until")
    ),
    {"name": "by", "in": "query", "schema": {"type": "string"}},
]
_CHOICE = {"name": "choice", "in": "query", "schema": {"type": "integer", "minimum": 0}}
_TOP = {"name": "top", "in": "query", "schema": RANGES["top_logprobs"].json_schema()}
_KEPT_QUERY = [
    {"name": "limit", "in": "query", "schema": {"type": "integer", **LIMIT.json_schema()}},
    {"name": "since", "in": "query", "schema": {"type": "integer", **SINCE.json_schema()}},
    {"name": "after", "in": "query", "schema": {"type": "string"}},
    _MODEL_QUERY,
]
_NAME = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}


def openapi_document(version: str) -> dict[str, Any]:
    """OpenAPI 3.1, made from the types that read the bodies and the ranges that are checked."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "jetflock", "version": version},
        "paths": {
            **_inference_paths(),
            **_response_paths(),
            **_conversation_paths(),
            **_stream_paths(),
            **_message_paths(),
            **_ollama_paths(),
            **_token_paths(),
            **_audio_paths(),
            **_file_paths(),
            **_batch_paths(),
            **_cluster_paths(),
            **_open_paths(),
        },
        "components": {
            "schemas": body_schemas() | answer_schemas(),
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "anthropic_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        # A server without keys is open to all.
        "security": [{}, {"key": []}, {"anthropic_key": []}],
    }


def _inference_paths() -> Paths:
    return {
        **_twice(CHAT_PATHS, "post", start_of("chat", "ChatBody", "ChatCompletion")),
        CHAT_BATCH_PATH: {"post": start_of("chat_batch", "ChatBatchBody", "ChatCompletion")},
        "/infill": {"post": start_of("infill", "InfillBody", "Infill")},
        "/v1/completions": {"post": start_of("completion", "CompletionBody", "Completion")},
        "/generate": {"post": start_of("generate", "GenerateBody", "Generated")},
        **_twice(EMBEDDING_PATHS, "post", start_of("embedding", "EmbeddingBody", "EmbeddingList")),
        **{path: {"post": start_of(_id(path), "ScoreBody", "ScoreList")} for path in SCORE_PATHS},
        **{path: {"post": start_of(_id(path), "RerankBody", "Ranking")} for path in RERANK_PATHS},
        **_twice(CLASS_PATHS[::-1], "post", start_of("classify", "ClassBody", "ClassList")),
        **_twice(POOLING_PATHS[::-1], "post", start_of("pooling", "PoolingBody", "PooledList")),
        "/invocations": {"post": _invocation()},
        "/health_generate": {"get": _probe()},
    }


def _response_paths() -> Paths:
    one = [_RESPONSE_ID]
    return {
        **_twice(RESPONSE_PATHS, "post", start_of("create_response", "ResponseBody", "Response")),
        "/v1/responses/input_tokens": {
            "post": operation_of("input_tokens", "InputTokens", body=schema_ref("ResponseBody"))
        },
        "/v1/responses/{response_id}": {
            "get": operation_of(
                "get_response", "Response", parameters=[*one, *_EVENT_QUERY], streams=True
            ),
            "delete": operation_of("delete_response", "ResponseDeleted", parameters=one),
        },
        "/v1/responses/{response_id}/cancel": {
            "post": operation_of("cancel_response", "Response", parameters=one)
        },
        "/v1/responses/{response_id}/input_items": {
            "get": operation_of("list_input_items", "InputItems", parameters=[*one, *_PAGE_QUERY])
        },
    }


def _stream_paths() -> Paths:
    return {
        "/v1/streams": {"get": operation_of("list_streams", "KeptStreams", parameters=_KEPT_QUERY)},
        "/v1/streams/{rid}": {
            "get": _resume(),
            "delete": operation_of("erase", "Erased", parameters=[_RID]),
        },
        "/v1/streams/{rid}/fork": {"post": _fork()},
        "/v1/streams/{rid}/tokens": {
            "get": operation_of("tokens", "StreamTokens", parameters=[_RID, _CHOICE, _TOP])
        },
        "/v1/streams/{rid}/path": {"get": operation_of("path", "RequestPath", parameters=[_RID])},
        "/abort_request": {"post": operation_of("abort", "Aborted", body=_ABORT_BODY)},
    }


def _cluster_paths() -> Paths:
    return {
        "/v1/loads": {"get": operation_of("loads", "Loads", parameters=[_MODEL_QUERY])},
        "/v1/usage": {"get": operation_of("usage", "UsageReport", parameters=_USAGE_QUERY)},
        "/cluster": {"get": operation_of("cluster", "ClusterView")},
        "/cluster/events": {"get": _cluster_events()},
        "/cluster/history": {"get": operation_of("cluster_history", "ClusterHistoryView")},
        **_twice(MODEL_PATHS, "get", operation_of("list_models", "ModelList")),
        "/v1/models/{name}": {"get": operation_of("get_model", "Model", parameters=[_NAME])},
        "/metrics": {
            "get": operation_of("metrics", "")
            | {"responses": {"200": content_of({"text/plain": _TEXT})}}
        },
    }


def _open_paths() -> Paths:
    """Those that ask for no key."""
    paths: Paths = {
        path: {"get": operation_of(_id(path), answer)} for path, answer in _OPEN.items()
    }
    for path in _HEALTH_PATHS:
        not_well = {"application/json": {"schema": schema_ref("Health")}}
        paths[path]["get"]["responses"]["503"] = content_of(not_well)
    html = {"200": content_of({"text/html": _TEXT})}
    library = operation_of("page_library", "", parameters=[_NAME])
    types = ("text/javascript", "text/css", "text/plain", "font/woff2")
    library["responses"]["200"] = content_of(dict.fromkeys(types, _TEXT))
    paths["/"] = {"get": operation_of("page", "") | {"responses": html}}
    paths["/page/{name}"] = {"get": library}
    for methods in paths.values():
        methods["get"]["security"] = []
    return paths


def _twice(paths: tuple[str, str], method: str, operation: dict[str, Any]) -> Paths:
    """An operation at its path, and at the one without /v1."""
    with_v1, without = paths
    name = f"{operation['operationId']}_without_v1"
    return {
        with_v1: {method: operation},
        without: {method: {**operation, "operationId": name}},
    }


def _invocation() -> dict[str, Any]:
    """The body and the answer of one of several APIs."""
    operation = start_of("invoke", "ChatBody", "ChatCompletion")
    bodies = ("ChatBody", "CompletionBody", "EmbeddingBody", "ScoreBody", "RerankBody", "ClassBody")
    answers = ("ChatCompletion", "Completion", "EmbeddingList", "ScoreList", "Ranking", "ClassList")
    content = operation["requestBody"]["content"]["application/json"]
    content["schema"] = {"anyOf": [schema_ref(body) for body in bodies]}
    answer = operation["responses"]["200"]["content"]["application/json"]
    answer["schema"] = {"anyOf": [schema_ref(name) for name in answers]}
    return operation


def _probe() -> dict[str, Any]:
    """What the model makes: a token, a vector or a score."""
    operation = operation_of("health_generate", "Generated", parameters=[_MODEL_QUERY])
    answers = ("Generated", "EmbeddingList", "ScoreList", "ClassList")
    answer = operation["responses"]["200"]["content"]["application/json"]
    answer["schema"] = {"anyOf": [schema_ref(name) for name in answers]}
    return operation


def _resume() -> dict[str, Any]:
    operation = operation_of("resume", "Answer", parameters=[_RID, *_STREAM_QUERY], streams=True)
    operation["responses"]["200"]["content"]["application/x-ndjson"] = {"schema": {}}
    return operation


def _fork() -> dict[str, Any]:
    operation = start_of("fork", "ForkBody", "Answer")
    return operation | {"parameters": [_RID, *operation.get("parameters", ())]}


def _cluster_events() -> dict[str, Any]:
    operation = operation_of("cluster_events", "")
    operation["responses"]["200"] = content_of({"text/event-stream": {"schema": {}}})
    return operation


def _message_paths() -> Paths:
    paths = {
        "/v1/messages": {"post": start_of("create_message", "MessageBody", "Message")},
        "/v1/messages/count_tokens": {
            "post": operation_of("count_tokens", "MessageTokens", body=schema_ref("CountBody"))
        },
    }
    return _with_errors(paths, "MessageError")


def _ollama_paths() -> Paths:
    paths = {
        "/api/chat": {"post": start_of("ollama_chat", "OllamaChatBody", "OllamaChat")},
        "/api/generate": {
            "post": start_of("ollama_generate", "OllamaGenerateBody", "OllamaGenerated")
        },
        "/api/embed": {"post": start_of("ollama_embed", "OllamaEmbedBody", "OllamaEmbeddings")},
        "/api/show": {
            "post": operation_of("ollama_show", "OllamaShown", body=schema_ref("OllamaShowBody"))
        },
        "/api/tags": {"get": operation_of("ollama_tags", "OllamaTags")},
        "/api/ps": {"get": operation_of("ollama_running", "OllamaRunning")},
        "/api/version": {"get": operation_of("ollama_version", "OllamaVersion")},
    }
    for path in ("/api/chat", "/api/generate"):
        content = paths[path]["post"]["responses"]["200"]["content"]
        content["application/x-ndjson"] = content.pop("text/event-stream")
    del paths["/api/embed"]["post"]["responses"]["200"]["content"]["text/event-stream"]
    return _with_errors(paths, "OllamaError")


def _with_errors(paths: Paths, schema: str) -> Paths:
    """In the shape of another API."""
    for path in paths.values():
        for operation in path.values():
            for status in ERRORS:
                content = operation["responses"][str(status)]["content"]
                content["application/json"] = {"schema": schema_ref(schema)}
    return paths


def _conversation_paths() -> Paths:
    path, one = "/v1/conversations/{conversation_id}", [_CONVERSATION_ID]
    item = [_CONVERSATION_ID, _CONVERSATION_ID | {"name": "item_id"}]
    body, change, items = (
        schema_ref(f"Conversation{kind}") for kind in ("Body", "Change", "Items")
    )
    name = "ConversationObject"
    return {
        "/v1/conversations": {"post": operation_of("create_conversation", name, body=body)},
        path: {
            "get": operation_of("get_conversation", name, parameters=one),
            "post": operation_of("change_conversation", name, body=change, parameters=one),
            "delete": operation_of("delete_conversation", "ConversationDeleted", parameters=one),
        },
        f"{path}/items": {
            "get": operation_of(
                "list_conversation_items", "InputItems", parameters=[*one, *_PAGE_QUERY]
            ),
            "post": operation_of(
                "add_conversation_items", "InputItems", body=items, parameters=one
            ),
        },
        f"{path}/items/{{item_id}}": {
            "get": operation_of("get_conversation_item", "ResponseItem", parameters=item),
            "delete": operation_of("delete_conversation_item", name, parameters=item),
        },
    }


def _token_paths() -> Paths:
    model = _MODEL_QUERY
    return {
        "/tokenize": {
            "post": operation_of("tokenize", "Tokenized", body=schema_ref("TokenizeBody"))
        },
        "/detokenize": {
            "post": operation_of("detokenize", "Detokenized", body=schema_ref("DetokenizeBody"))
        },
        "/apply-template": {
            "post": operation_of("apply_template", "Templated", body=schema_ref("TemplateBody"))
        },
        "/v1/tokenizer_info": {
            "get": operation_of("tokenizer_info", "TokenizerInfo", parameters=[model])
        },
        "/props": {"get": operation_of("props", "Props", parameters=[model])},
        "/tokenizer_info": {
            "get": operation_of("tokenizer_info_at_the_root", "TokenizerInfo", parameters=[model])
        },
    }


def _id(path: str) -> str:
    """The id of an operation, where the path says what it does."""
    return path.strip("/").replace("/", "_").replace(".", "_")


def _audio_paths() -> Paths:
    paths = {}
    for path in AUDIO_PATHS.values():
        operation = start_of(_id(path), "TranscriptBody", "HeardText")
        schema = operation["requestBody"]["content"].pop("application/json")
        operation["requestBody"]["content"]["multipart/form-data"] = schema
        operation["responses"]["200"]["content"]["text/plain"] = _TEXT
        paths[path] = {"post": operation}
    return paths


def _file_paths() -> Paths:
    upload = operation_of("upload_file", "File")
    upload["requestBody"] = {
        "required": True,
        "content": {"multipart/form-data": {"schema": schema_ref("FileForm")}},
    }
    content = operation_of("file_content", "File", parameters=[_FILE_ID])
    anything = {"schema": {"type": "string", "format": "binary"}}
    content["responses"]["200"] = content_of(
        {"application/jsonl": anything, "application/octet-stream": anything}
    )
    purpose = {"name": "purpose", "in": "query", "schema": {"enum": [UPLOADED, MADE]}}
    return {
        "/v1/files": {
            "post": upload,
            "get": operation_of("list_files", "FileList", parameters=[*_page(10_000), purpose]),
        },
        "/v1/files/{file_id}": {
            "get": operation_of("get_file", "File", parameters=[_FILE_ID]),
            "delete": operation_of("delete_file", "FileDeleted", parameters=[_FILE_ID]),
        },
        "/v1/files/{file_id}/content": {"get": content},
    }


def _batch_paths() -> Paths:
    body = schema_ref("BatchBody")
    return {
        "/v1/batches": {
            "post": operation_of("create_batch", "Batch", body=body),
            "get": operation_of("list_batches", "BatchList", parameters=_page(100)),
        },
        "/v1/batches/{batch_id}": {
            "get": operation_of("get_batch", "Batch", parameters=[_BATCH_ID])
        },
        "/v1/batches/{batch_id}/cancel": {
            "post": operation_of("cancel_batch", "Batch", parameters=[_BATCH_ID])
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
