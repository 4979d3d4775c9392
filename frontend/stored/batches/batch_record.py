"""A batch as its record tells it."""

from __future__ import annotations

import enum
import re
import secrets

import msgspec

from frontend.stored.batches.batch_usage import BatchUsage
from shared.protocol.reply import Surface

# What the lines of a batch may ask for.
ENDPOINTS = {
    "/v1/chat/completions": Surface.CHAT,
    "/v1/completions": Surface.COMPLETIONS,
    "/v1/embeddings": Surface.EMBEDDINGS,
    "/v1/responses": Surface.RESPONSES,
    "/v1/score": Surface.SCORE,
    "/v1/rerank": Surface.RERANK,
}

_BATCH_ID = re.compile(r"batch_[0-9a-f]{32}")


class BatchStatus(enum.StrEnum):
    """Where a batch stands; OpenAI's words."""

    VALIDATING = "validating"
    FAILED = "failed"  # its input file cannot be used
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"  # all lines are over, the files are being written
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def is_over(self) -> bool:
        return self in (
            BatchStatus.FAILED,
            BatchStatus.COMPLETED,
            BatchStatus.EXPIRED,
            BatchStatus.CANCELLED,
        )


class InputError(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is wrong with an input file."""

    code: str
    message: str
    line: int | None = None  # the first is 1
    param: str | None = None


class Counts(msgspec.Struct, frozen=True):
    """Lines."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """In the KV bucket `batches`, always written by compare-and-set. Times are unix seconds."""

    id: str
    owner: str  # hash of the tenant's id
    tenant: str  # its id: whose limits count
    endpoint: str
    input_file_id: str
    completion_window: str
    created: float
    expires: float
    status: BatchStatus = BatchStatus.VALIDATING
    output_ttl_s: float | None = None  # None: as long as files are kept
    metadata: dict[str, str] | None = None
    errors: tuple[InputError, ...] = ()
    counts: Counts = Counts()
    usage: BatchUsage | None = None  # once the files are written
    files: tuple[str, ...] = ()  # output and error file, of who is writing them
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: float | None = None
    finalizing_at: float | None = None
    completed_at: float | None = None
    failed_at: float | None = None
    expired_at: float | None = None
    cancelling_at: float | None = None
    cancelled_at: float | None = None


def new_batch_id() -> str:
    """One that nobody can guess."""
    return f"batch_{secrets.token_hex(16)}"


def is_batch_id(text: str) -> bool:
    """Whether a client's text may be one; only then it may enter a subject."""
    return _BATCH_ID.fullmatch(text) is not None
