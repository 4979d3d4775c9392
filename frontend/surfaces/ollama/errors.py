"""Errors in Ollama's shape."""

from __future__ import annotations

from frontend.text.event_writer import encode_json
from shared.errors import RequestError


def ollama_error_body(error: RequestError) -> bytes:
    """The message alone, as Ollama's clients expect it; our code and field stand beside it."""
    return encode_json({"error": error.message, "code": error.code, "param": error.param})
