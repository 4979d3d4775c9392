"""Images that come inside their URL."""

from __future__ import annotations

import base64
import binascii
import urllib.parse

SCHEME = "data:"


class BadDataUrl(Exception):
    """The message goes on behind "the URL"."""


def read_data_url(url: str, max_bytes: int) -> bytes:
    """The bytes in it, whatever type it names. Slow: for a thread. Raises BadDataUrl."""
    head, comma, body = url[len(SCHEME) :].partition(",")
    if not comma:
        raise BadDataUrl("has no comma before its data")
    is_base64 = head.rpartition(";")[2].strip().lower() == "base64"
    if len(body) > (max_bytes + 2) // 3 * 4 + 64 if is_base64 else len(body) > 3 * max_bytes:
        raise BadDataUrl(f"holds more than {max_bytes} bytes")
    if not is_base64:
        data = urllib.parse.unquote_to_bytes(body)
    else:
        try:
            data = base64.b64decode(urllib.parse.unquote(body), validate=True)
        except (binascii.Error, ValueError) as exc:
            raise BadDataUrl(f"is not base64: {exc}") from exc
    if len(data) > max_bytes:
        raise BadDataUrl(f"holds {len(data)} bytes, at most {max_bytes}")
    return data
