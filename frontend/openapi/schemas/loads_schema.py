"""JSON Schema of /v1/loads."""

from __future__ import annotations

from typing import Any

from frontend.openapi.schemas.schema_words import COUNT, TEXT, list_of, object_of
from shared.subjects import JOB_CLASSES


def loads_schema() -> dict[str, Any]:
    """How full the workers are, and what waits for them."""
    share = {"type": "number", "minimum": 0}
    worker = {
        **dict.fromkeys(("worker", "model", "revision", "state"), TEXT),
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
            COUNT,
        ),
        **dict.fromkeys(("token_usage", "utilization"), share),
    }
    queue = {
        "model": TEXT,
        "class": {"enum": list(JOB_CLASSES)},
        "num_waiting": COUNT,
        "num_taken": COUNT,
        "oldest_wait_s": {"type": "number", "minimum": 0},
    }
    totals = ("running_reqs", "waiting_reqs", "reqs", "used_tokens", "tokens")
    aggregate = {
        **{f"total_{name}": COUNT for name in totals},
        **{f"avg_{name}": share for name in ("token_usage", "utilization")},
    }
    return object_of(
        {
            "timestamp": TEXT,
            "version": TEXT,
            "dp_rank_count": COUNT,
            "loads": list_of(object_of(worker)),
            "queues": list_of(object_of(queue)),
            "aggregate": object_of(aggregate),
        }
    )
