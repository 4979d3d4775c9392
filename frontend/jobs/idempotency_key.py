"""Idempotency keys: how a client gives one, and the fingerprint of the body it stands for."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from frontend.tenants.tenant import ANYONE
from shared.errors import InvalidRequest
from shared.protocol.reply import Surface

FIELD = "idempotency_key"
MAX_KEY_CHARS = 255
_HOW_IT_IS_SENT = frozenset({"stream", FIELD})  # says nothing about what is asked


def checked_key(key: Any, param: str = "Idempotency-Key") -> str:
    """The key, or "" for none. Raises InvalidRequest."""
    if key is None:
        return ""
    if not isinstance(key, str):
        raise InvalidRequest(f"'{param}' must be a string", param=param, code="invalid_type")
    if not 1 <= len(key) <= MAX_KEY_CHARS or not (key.isascii() and key.isprintable()):
        raise InvalidRequest(
            f"'{param}' is {key[:40]!r}, must be 1 to {MAX_KEY_CHARS} printable ASCII characters",
            param=param,
        )
    return key


def key_of(body: dict[str, Any], header: str) -> str:
    """The key in the body, or the header's; "" for none. Raises InvalidRequest."""
    field = checked_key(body.get(FIELD), FIELD)
    if field and header and field != header:
        raise InvalidRequest(
            f"'{FIELD}' is {field!r}, and the header Idempotency-Key {header!r}", param=FIELD
        )
    return field or header


def key_name(owner: str, key: str) -> str:
    """What a key of a tenant is filed under: its owner, and nothing of the client's own text."""
    text = f"{owner}\n{key}".encode()
    digest = hashlib.blake2b(text, digest_size=16, person=b"jetflock-idem").hexdigest()
    return f"{keys_of(owner)}{digest}"


def keys_of(owner: str) -> str:
    """What the names of all keys of a tenant begin with."""
    return f"{owner or ANYONE}."


def fingerprint(surface: Surface, body: dict[str, Any]) -> str:
    """Equal for equal bodies, whatever the order of their fields, streamed or not."""
    asked = {name: value for name, value in body.items() if name not in _HOW_IT_IS_SENT}
    text = msgspec.json.encode((surface, asked), order="deterministic")
    return hashlib.blake2b(text, digest_size=16).hexdigest()
