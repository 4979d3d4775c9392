"""The ids of calls: the same whoever tells of them."""

from __future__ import annotations

import hashlib

from frontend.parsers.tool_parsers import TOOL_PARSERS

_ID_LEN = 24


def call_id(rid: str, idx: int, parser: str | None) -> str:
    """Of one call of a request. `parser`: the name of the one that read it."""
    digest = hashlib.sha256(f"{rid}.{idx}".encode()).hexdigest()
    only_len = None if parser is None else TOOL_PARSERS.stored(parser).call_id_len
    return f"call_{digest[:_ID_LEN]}" if only_len is None else digest[:only_len]
