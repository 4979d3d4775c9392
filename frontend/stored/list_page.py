"""Lists in pages, as OpenAI has them: newest first, after the last id that was seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shared.errors import InvalidRequest


def page_of(
    objects: Sequence[dict[str, Any]], query: Mapping[str, str], *, max_limit: int, default: int
) -> dict[str, Any]:
    """`objects` oldest first, each with its `id`. Raises InvalidRequest."""
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest(f"'order' is {order[:40]!r}, must be asc or desc", param="order")
    chosen = list(objects) if order == "asc" else list(reversed(objects))
    after = query.get("after")
    if after:
        ids = [item["id"] for item in chosen]
        if after not in ids:
            raise InvalidRequest(f"'after' is {after[:64]!r}, which is not listed", param="after")
        chosen = chosen[ids.index(after) + 1 :]
    limit = _limit(query.get("limit"), max_limit, default)
    page = chosen[:limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(chosen) > limit,
    }


def _limit(text: str | None, max_limit: int, default: int) -> int:
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text[:9]) <= max_limit:
        raise InvalidRequest(f"'limit' is {text[:40]!r}, must be 1 to {max_limit}", param="limit")
    return int(text)
