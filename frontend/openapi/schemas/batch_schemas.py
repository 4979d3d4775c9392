"""JSON Schema of batches."""

from __future__ import annotations

from typing import Any

from frontend.openapi.schemas.response_schemas import token_usage
from frontend.openapi.schemas.schema_words import (
    COUNT,
    OPTIONAL_TEXT,
    TEXT,
    list_of,
    object_of,
    page_of,
)
from frontend.stored.batches.batch_record import ENDPOINTS, TIMES, BatchStatus


def batch_schemas() -> dict[str, dict[str, Any]]:
    """A batch, and a page of them."""
    error = object_of(
        {
            "code": TEXT,
            "message": TEXT,
            "param": OPTIONAL_TEXT,
            "line": {"type": ["integer", "null"]},
        }
    )
    errors = object_of({"object": {"const": "list"}, "data": list_of(error)})
    moment = {"type": ["integer", "null"]}
    batch = object_of(
        {
            "id": TEXT,
            "object": {"const": "batch"},
            "endpoint": {"enum": list(ENDPOINTS)},
            "errors": {"anyOf": [errors, {"type": "null"}]},
            "input_file_id": TEXT,
            "completion_window": TEXT,
            "status": {"enum": [status.value for status in BatchStatus]},
            "output_file_id": OPTIONAL_TEXT,
            "error_file_id": OPTIONAL_TEXT,
            "created_at": COUNT,
            "expires_at": COUNT,
            **dict.fromkeys(TIMES, moment),
            "request_counts": object_of({"total": COUNT, "completed": COUNT, "failed": COUNT}),
            "usage": {"anyOf": [token_usage(), {"type": "null"}]},
            "metadata": {"type": ["object", "null"]},
        }
    )
    return {"Batch": batch, "BatchList": page_of("Batch")}
