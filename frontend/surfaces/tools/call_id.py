"""The ids of calls: the same whoever tells of them."""

from __future__ import annotations

import hashlib

from shared.protocol.reply import ToolStyle

_MISTRAL_ID_LEN = 9  # their chat templates refuse any other
_ID_LEN = 24


def call_id(rid: str, idx: int, style: ToolStyle | None) -> str:
    """Of one call of a request."""
    digest = hashlib.sha256(f"{rid}.{idx}".encode()).hexdigest()
    if style in (ToolStyle.MISTRAL, ToolStyle.MISTRAL_ARGS):
        return digest[:_MISTRAL_ID_LEN]
    return f"call_{digest[:_ID_LEN]}"
