"""Errors in Anthropic's shape."""

from __future__ import annotations

from frontend.text.event_writer import encode_json
from shared.errors import RequestError

_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def message_error_body(error: RequestError) -> bytes:
    """Our code and field stand in `details`."""
    status = error.status_code
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    details = {"error_code": error.code, "param": error.param}
    return encode_json(
        {"type": "error", "error": {"type": kind, "message": error.message, "details": details}}
    )
