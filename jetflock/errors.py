"""What a call of the Python client can fail with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Self

ERROR_HEADER = "Nats-Service-Error"
ERROR_CODE_HEADER = "Nats-Service-Error-Code"


class ClientError(Exception):
    """Root of all errors of the client."""


class NotAccepted(ClientError):
    """No frontend confirmed the request. It may run nevertheless, unless the message says no."""


class StreamLost(ClientError):
    """The stream could not be resumed in time. The request may go on: `Client.resume(...)`."""

    def __init__(self, message: str, request_id: str, event_id: str | None) -> None:
        super().__init__(message)
        self.request_id = request_id
        self.event_id = event_id


class ApiError(ClientError):
    """The service answered with an error: the HTTP status, and OpenAI's error object."""

    def __init__(
        self,
        message: str,
        *,
        status: int,
        type: str | None = None,  # noqa: A002 - the field's name in OpenAI's error object
        code: str | None = None,
        param: str | None = None,
        request_id: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.type = type
        self.code = code
        self.param = param
        self.request_id = request_id
        self.retry_after_s = retry_after_s  # when it is worth asking again, where that is known

    @classmethod
    def from_reply(cls, data: bytes, headers: Mapping[str, str]) -> Self:
        """The error of the class that fits its status."""
        status = _number(headers.get(ERROR_CODE_HEADER)) or 500
        try:
            error = json.loads(data)["error"]
        except (ValueError, KeyError, TypeError):
            error = {}
        error_class = _CLASSES.get(status, ServerError if status >= 500 else ApiError)
        if error.get("code") == "idempotency_key_reused":
            error_class = IdempotencyConflict
        assert issubclass(error_class, cls)
        return error_class(
            error.get("message") or headers.get(ERROR_HEADER) or "unknown error",
            status=status,
            type=error.get("type"),
            code=error.get("code"),
            param=error.get("param"),
            request_id=headers.get("Jetflock-Request-Id"),
            retry_after_s=_number(headers.get("Retry-After")),
        )


class BadRequest(ApiError):
    """400: a field is missing, of the wrong type, or out of range."""


class AuthenticationFailed(ApiError):
    """401: the API key is wrong or absent."""


class NotFound(ApiError):
    """404: an unknown model or stream."""


class DeadlineExceeded(ApiError):
    """408: the time that the request was given ran out."""


class ResumeConflict(ApiError):
    """409: the event id describes a text that is not the beginning of this stream."""


class IdempotencyConflict(ApiError):
    """409: the idempotency key stands for a request with another body."""


class RequestTooLarge(ApiError):
    """413: the body is larger than the service, or one NATS message, takes."""


class QueueFull(ApiError):
    """429: come back after `retry_after_s`."""


class Cancelled(ApiError):
    """499: somebody aborted the request."""


class ServerError(ApiError):
    """5xx: not the caller's fault."""


_CLASSES: dict[int, type[ApiError]] = {
    400: BadRequest,
    401: AuthenticationFailed,
    404: NotFound,
    408: DeadlineExceeded,
    409: ResumeConflict,
    413: RequestTooLarge,
    429: QueueFull,
    499: Cancelled,
}


def _number(header: str | None) -> int | None:
    return int(header) if header is not None and header.isdecimal() else None
