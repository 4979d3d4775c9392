"""A batch as its record tells it."""

from __future__ import annotations

import enum
import re
import secrets

import msgspec

from frontend.text.usage import InputTokensDetails, OutputTokensDetails, TokenUsage
from shared.protocol.reply import Surface

# What the lines of a batch may ask for.
ENDPOINTS = {
    "/v1/chat/completions": Surface.CHAT,
    "/v1/completions": Surface.COMPLETIONS,
    "/v1/embeddings": Surface.EMBEDDINGS,
    "/v1/responses": Surface.RESPONSES,
    "/v1/score": Surface.SCORE,
    "/v1/rerank": Surface.RERANK,
    "/v1/classify": Surface.CLASSIFY,
    "/v1/pooling": Surface.POOLING,
}

_BATCH_ID = re.compile(r"batch_[0-9a-f]{32}")


class BatchUsage(msgspec.Struct, frozen=True):
    """Tokens of all lines that have an answer."""

    input_tokens: int = 0
    cached_tokens: int = 0  # of the input
    output_tokens: int = 0
    reasoning_tokens: int = 0  # of the output

    def with_line(self, line: bytes) -> BatchUsage:
        """And those of a line of the output file."""
        response = msgspec.json.decode(line, type=_Line).response
        usage = None if response is None else response.body.usage
        if usage is None:
            return self
        read = usage.input_tokens_details or usage.prompt_tokens_details
        made = usage.output_tokens_details or usage.completion_tokens_details
        return BatchUsage(
            self.input_tokens + (usage.input_tokens or usage.prompt_tokens),
            self.cached_tokens + (read.cached_tokens if read else 0),
            self.output_tokens + (usage.output_tokens or usage.completion_tokens),
            self.reasoning_tokens + (made.reasoning_tokens if made else 0),
        )

    def view(self) -> TokenUsage:
        """OpenAI's object."""
        return TokenUsage(
            input_tokens=self.input_tokens,
            input_tokens_details=InputTokensDetails(cached_tokens=self.cached_tokens),
            output_tokens=self.output_tokens,
            output_tokens_details=OutputTokensDetails(reasoning_tokens=self.reasoning_tokens),
            total_tokens=self.input_tokens + self.output_tokens,
        )


class _Details(msgspec.Struct):
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class _Usage(msgspec.Struct):
    """The usage of an answer: responses have names of their own."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


class _Body(msgspec.Struct):
    usage: _Usage | None = None


class _Response(msgspec.Struct):
    body: _Body


class _Line(msgspec.Struct):
    response: _Response | None = None


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
    """An entry of the KV bucket `batches`, always written by compare-and-set.

    Times are unix seconds.
    """

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
