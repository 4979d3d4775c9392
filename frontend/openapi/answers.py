"""JSON Schema of whole answers; the events of a stream have the same fields in pieces."""

from __future__ import annotations

from typing import Any

from frontend.batches.record import ENDPOINTS, TIMES, BatchStatus
from frontend.files.record import MADE, UPLOADED
from frontend.openapi.cluster_answer import cluster_schema
from frontend.tokens.tokenizer_facts import SPECIAL_TOKENS
from shared.protocol.reply import ScoreMethod
from shared.subjects import JOB_CLASSES

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
        {
            "index": _COUNT,
            **own,
            "logprobs": {"type": ["object", "null"]},
            "finish_reason": _TEXT,
            "cumulative_logprob": {"type": "number"},
        },
        "cumulative_logprob",
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


def _page_of(name: str) -> dict[str, Any]:
    return _object(
        {
            "object": {"const": "list"},
            "data": _list_of(_ref(name)),
            "first_id": _OPTIONAL_TEXT,
            "last_id": _OPTIONAL_TEXT,
            "has_more": {"type": "boolean"},
        }
    )


def _file_schemas() -> dict[str, dict[str, Any]]:
    file = _object(
        {
            "id": _TEXT,
            "object": {"const": "file"},
            "bytes": _COUNT,
            "created_at": _COUNT,
            "expires_at": _COUNT,
            "filename": _TEXT,
            "purpose": {"enum": [UPLOADED, MADE]},
            "status": {"const": "processed"},
            "status_details": {"type": "null"},
        }
    )
    form = _object(
        {
            "purpose": {"enum": [UPLOADED]},
            "file": {"type": "string", "format": "binary"},
            "expires_after[anchor]": {"const": "created_at"},
            "expires_after[seconds]": _COUNT,
        },
        "expires_after[anchor]",
        "expires_after[seconds]",
    )
    deleted = {"id": _TEXT, "object": {"const": "file"}, "deleted": {"const": True}}
    return {
        "File": file,
        "FileForm": form,
        "FileList": _page_of("File"),
        "FileDeleted": _object(deleted),
    }


def _batch_schemas() -> dict[str, dict[str, Any]]:
    error = _object(
        {
            "code": _TEXT,
            "message": _TEXT,
            "param": _OPTIONAL_TEXT,
            "line": {"type": ["integer", "null"]},
        }
    )
    errors = _object({"object": {"const": "list"}, "data": _list_of(error)})
    moment = {"type": ["integer", "null"]}
    batch = _object(
        {
            "id": _TEXT,
            "object": {"const": "batch"},
            "endpoint": {"enum": list(ENDPOINTS)},
            "errors": {"anyOf": [errors, {"type": "null"}]},
            "input_file_id": _TEXT,
            "completion_window": _TEXT,
            "status": {"enum": [status.value for status in BatchStatus]},
            "output_file_id": _OPTIONAL_TEXT,
            "error_file_id": _OPTIONAL_TEXT,
            "created_at": _COUNT,
            "expires_at": _COUNT,
            **dict.fromkeys(TIMES, moment),
            "request_counts": _object({"total": _COUNT, "completed": _COUNT, "failed": _COUNT}),
            "usage": {"anyOf": [_token_usage(), {"type": "null"}]},
            "metadata": {"type": ["object", "null"]},
        }
    )
    return {"Batch": batch, "BatchList": _page_of("Batch")}


def _item() -> dict[str, Any]:
    """Of a conversation."""
    state = {"id": _TEXT, "status": {"enum": ["in_progress", "completed", "incomplete"]}}
    parts = _list_of({"type": "object", "required": ["type", "text"]})
    message = {"role": {"enum": ["user", "assistant", "system", "developer"]}, "content": parts}
    of_kinds: dict[str, dict[str, Any]] = {
        "message": message,
        "reasoning": {"summary": parts, "content": parts},
        "function_call": {"call_id": _TEXT, "name": _TEXT, "arguments": _TEXT},
        "function_call_output": {"call_id": _TEXT, "output": _TEXT},
    }
    return {
        "anyOf": [
            _object({**state, "type": {"const": kind}, **own}) for kind, own in of_kinds.items()
        ]
    }


def _token_usage() -> dict[str, Any]:
    """Of a response, and of a batch."""
    return _object(
        {
            "input_tokens": _COUNT,
            "input_tokens_details": _object(
                {"cached_tokens": _COUNT, "cache_write_tokens": _COUNT}, "cache_write_tokens"
            ),
            "output_tokens": _COUNT,
            "output_tokens_details": _object({"reasoning_tokens": _COUNT}),
            "total_tokens": _COUNT,
        }
    )


def _response() -> dict[str, Any]:
    error = _object({"code": {"const": "server_error"}, "message": _TEXT})
    status = ["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    return _object(
        {
            "id": _TEXT,
            "object": {"const": "response"},
            "created_at": _COUNT,
            "status": {"enum": status},
            "error": {"anyOf": [error, {"type": "null"}]},
            "incomplete_details": {
                "anyOf": [_object({"reason": {"const": "max_output_tokens"}}), {"type": "null"}]
            },
            "model": _TEXT,
            "output": _list_of(_item()),
            "instructions": _OPTIONAL_TEXT,
            "metadata": {"type": "object", "additionalProperties": _TEXT},
            "previous_response_id": _OPTIONAL_TEXT,
            "background": {"type": "boolean"},
            "store": {"type": "boolean"},
            "temperature": {"type": "number"},
            "top_p": {"type": "number"},
            "text": {"type": "object", "required": ["format"]},
            "tools": {"type": "array"},
            "tool_choice": {"type": ["string", "object"]},
            "parallel_tool_calls": {"type": "boolean"},
            "usage": _token_usage(),
        },
        "usage",
    )


def _token_schemas() -> dict[str, dict[str, Any]]:
    strings = {"type": ["array", "null"], "items": _OPTIONAL_TEXT}
    tokenized = {
        "count": _COUNT,
        "max_model_len": _COUNT,
        "tokens": _list_of(_COUNT),
        "token_strs": strings,
    }
    info = {
        "model": _TEXT,
        "max_model_len": _COUNT,
        "vocab_size": _COUNT,
        "tokenizer_hash": _TEXT,
        "tokenizer_class": _OPTIONAL_TEXT,
        **dict.fromkeys(SPECIAL_TOKENS, _OPTIONAL_TEXT),
        "chat_template": _OPTIONAL_TEXT,
    }
    return {
        "Tokenized": _object(tokenized),
        "Detokenized": _object({"prompt": _TEXT}),
        "TokenizerInfo": _object(info),
    }


def _message_schemas() -> dict[str, dict[str, Any]]:
    usage = {
        "input_tokens": _COUNT,
        "cache_creation_input_tokens": _COUNT,
        "cache_read_input_tokens": _COUNT,
        "output_tokens": _COUNT,
        "output_tokens_details": _object({"thinking_tokens": _COUNT}),
    }
    message = {
        "id": _TEXT,
        "type": {"const": "message"},
        "role": {"const": "assistant"},
        "model": _TEXT,
        "content": _list_of(
            {
                "type": "object",
                "properties": {"type": {"enum": ["text", "thinking", "tool_use"]}},
                "required": ["type"],
            }
        ),
        "stop_reason": {"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use"]},
        "stop_sequence": _OPTIONAL_TEXT,
        "usage": _object(usage, "output_tokens_details"),
    }
    details = _object({"error_code": _OPTIONAL_TEXT, "param": _OPTIONAL_TEXT})
    error = _object({"type": _TEXT, "message": _TEXT, "details": details})
    return {
        "Message": _object(message),
        "MessageTokens": _object({"input_tokens": _COUNT}),
        "MessageError": _object({"type": {"const": "error"}, "error": error}),
    }


def _loads_schema() -> dict[str, Any]:
    share = {"type": "number", "minimum": 0}
    worker = {
        **dict.fromkeys(("worker", "model", "revision", "state"), _TEXT),
        **dict.fromkeys(
            (
                "dp_rank",
                "num_running_reqs",
                "num_waiting_reqs",
                "num_total_reqs",
                "num_used_tokens",
                "num_total_tokens",
                "max_total_num_tokens",
                "max_running_requests",
            ),
            _COUNT,
        ),
        **dict.fromkeys(("token_usage", "utilization"), share),
    }
    queue = {
        "model": _TEXT,
        "class": {"enum": list(JOB_CLASSES)},
        "num_waiting": _COUNT,
        "num_taken": _COUNT,
        "oldest_wait_s": {"type": "number", "minimum": 0},
    }
    totals = ("running_reqs", "waiting_reqs", "reqs", "used_tokens", "tokens")
    aggregate = {
        **{f"total_{name}": _COUNT for name in totals},
        **{f"avg_{name}": share for name in ("token_usage", "utilization")},
    }
    return _object(
        {
            "timestamp": _TEXT,
            "version": _TEXT,
            "dp_rank_count": _COUNT,
            "loads": _list_of(_object(worker)),
            "queues": _list_of(_object(queue)),
            "aggregate": _object(aggregate),
        }
    )


def answer_schemas() -> dict[str, dict[str, Any]]:
    """By name, for the components of an OpenAPI document."""
    function = _object({"name": _TEXT, "arguments": _TEXT})
    call = _object({"id": _TEXT, "type": {"const": "function"}, "function": function})
    message = _object(
        {
            "role": {"const": "assistant"},
            "content": _OPTIONAL_TEXT,
            "refusal": _OPTIONAL_TEXT,
            "tool_calls": _list_of(call),
            "reasoning_content": _TEXT,
            "reasoning": _TEXT,
        },
        "tool_calls",
        "reasoning_content",
        "reasoning",
    )
    usage = _object(
        {
            "prompt_tokens": _COUNT,
            "completion_tokens": _COUNT,
            "total_tokens": _COUNT,
            "prompt_tokens_details": _object({"cached_tokens": _COUNT}),
            "completion_tokens_details": _object({"reasoning_tokens": _COUNT}),
        },
        "completion_tokens",
        "completion_tokens_details",
    )
    embedding = _object(
        {
            "object": {"const": "embedding"},
            "index": _COUNT,
            "embedding": {"anyOf": [_list_of({"type": "number"}), _TEXT]},
        }
    )
    method = {"enum": [each.value for each in ScoreMethod]}
    score = _object({"index": _COUNT, "object": {"const": "score"}, "score": {"type": "number"}})
    ranked = _object(
        {
            "index": _COUNT,
            "relevance_score": {"type": "number"},
            "document": _object({"text": _TEXT}),
        },
        "document",
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
            "tasks": _list_of({"enum": ["generate", "embed", "score"]}),
            "score_method": method,
        },
        "score_method",
    )
    error = _object(
        {"message": _TEXT, "type": _TEXT, "param": _OPTIONAL_TEXT, "code": _OPTIONAL_TEXT}
    )
    return {
        **_file_schemas(),
        **_batch_schemas(),
        "Usage": usage,
        "Response": _response(),
        "InputItems": _object(
            {
                "object": {"const": "list"},
                "data": _list_of(_item()),
                "first_id": _TEXT,
                "last_id": _TEXT,
                "has_more": {"type": "boolean"},
            }
        ),
        "Deleted": _object(
            {"id": _TEXT, "object": {"const": "response"}, "deleted": {"const": True}}
        ),
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
        "ScoreList": _object(
            {
                "id": _TEXT,
                "object": {"const": "list"},
                "created": _COUNT,
                "model": _TEXT,
                "score_method": method,
                "data": _list_of(score),
                "usage": _ref("Usage"),
            }
        ),
        "Ranking": _object(
            {
                "id": _TEXT,
                "object": {"const": "rerank"},
                "model": _TEXT,
                "score_method": method,
                "results": _list_of(ranked),
                "usage": _ref("Usage"),
            }
        ),
        "Generated": {"anyOf": [generated, _list_of(generated)]},
        "Answer": {
            "anyOf": [
                _ref(name)
                for name in (
                    "ChatCompletion",
                    "Completion",
                    "EmbeddingList",
                    "ScoreList",
                    "Ranking",
                    "Generated",
                    "Message",
                    "Response",
                )
            ]
        },
        "Model": model,
        "ModelList": _object({"object": {"const": "list"}, "data": _list_of(_ref("Model"))}),
        **_token_schemas(),
        **_message_schemas(),
        "Loads": _loads_schema(),
        "Cluster": cluster_schema(),
        "Aborted": _object({"rid": _TEXT, "num_aborted": _COUNT}),
        "Status": _object({"status": _TEXT}),
        "NotWell": _object({"status": _TEXT, "why": _list_of(_TEXT)}),
        "Version": _object({"version": _TEXT}),
        "Document": {"type": "object", "required": ["openapi", "paths"]},
        "Error": _object({"error": error}),
    }
