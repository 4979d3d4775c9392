"""Batches as OpenAI shows them."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from frontend.stored.batches.batch_record import ENDPOINTS, BatchRecord, BatchStatus, InputError
from frontend.text.usage import TokenUsage
from frontend.text.wire_struct import Count, WireStruct

_Endpoint = Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(ENDPOINTS)})]


class BatchError(WireStruct, frozen=True, kw_only=True):
    """What is wrong with an input file."""

    code: str
    message: str
    param: str | None
    line: Count | None  # the first is 1


class BatchErrors(WireStruct, frozen=True, kw_only=True):
    """All that is known to be wrong with it."""

    object: Literal["list"]
    data: list[BatchError]


class RequestCounts(WireStruct, frozen=True, kw_only=True):
    """Lines of the input file."""

    total: Count
    completed: Count
    failed: Count


class Batch(WireStruct, frozen=True, kw_only=True):
    """One of them. Times are unix seconds, None until they come."""

    id: str
    object: Literal["batch"]
    endpoint: _Endpoint
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: BatchStatus
    output_file_id: str | None
    error_file_id: str | None
    created_at: Count
    expires_at: Count
    in_progress_at: Count | None
    finalizing_at: Count | None
    completed_at: Count | None
    failed_at: Count | None
    expired_at: Count | None
    cancelling_at: Count | None
    cancelled_at: Count | None
    request_counts: RequestCounts
    usage: TokenUsage | None  # once its files are written
    metadata: dict[str, str] | None


class BatchList(WireStruct, frozen=True, kw_only=True):
    """A page of them."""

    object: Literal["list"]
    data: list[Batch]
    first_id: str | None
    last_id: str | None
    has_more: bool


def batch_object(record: BatchRecord) -> Batch:
    """What its record says."""
    counts = record.counts
    return Batch(
        id=record.id,
        object="batch",
        endpoint=record.endpoint,
        errors=_errors(record.errors),
        input_file_id=record.input_file_id,
        completion_window=record.completion_window,
        status=record.status,
        output_file_id=record.output_file_id,
        error_file_id=record.error_file_id,
        created_at=int(record.created),
        expires_at=int(record.expires),
        in_progress_at=_second(record.in_progress_at),
        finalizing_at=_second(record.finalizing_at),
        completed_at=_second(record.completed_at),
        failed_at=_second(record.failed_at),
        expired_at=_second(record.expired_at),
        cancelling_at=_second(record.cancelling_at),
        cancelled_at=_second(record.cancelled_at),
        request_counts=RequestCounts(
            total=counts.total, completed=counts.completed, failed=counts.failed
        ),
        usage=None if record.usage is None else record.usage.view(),
        metadata=record.metadata,
    )


def _errors(errors: tuple[InputError, ...]) -> BatchErrors | None:
    if not errors:
        return None
    data = [
        BatchError(code=each.code, message=each.message, param=each.param, line=each.line)
        for each in errors
    ]
    return BatchErrors(object="list", data=data)


def _second(at: float | None) -> int | None:
    return None if at is None else int(at)
