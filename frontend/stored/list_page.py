"""Lists in pages, as OpenAI has them: newest first, after the last id that was seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from shared.errors import InvalidRequest


class _Named(Protocol):
    @property
    def id(self) -> str: ...


Listed = TypeVar("Listed", bound=_Named)


class PageEnds(NamedTuple):
    """Where a page begins and ends: fields of the list that it is."""

    first_id: str | None
    last_id: str | None
    has_more: bool


def page_of(
    objects: Sequence[Listed], query: Mapping[str, str], *, max_limit: int, default: int
) -> tuple[list[Listed], PageEnds]:
    """`objects` are oldest first. Raises InvalidRequest."""
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest(f"'order' is {order[:40]!r}, must be asc or desc", param="order")
    chosen = list(objects) if order == "asc" else list(reversed(objects))
    after = query.get("after")
    if after:
        ids = [item.id for item in chosen]
        if after not in ids:
            raise InvalidRequest(f"'after' is {after[:64]!r}, which is not listed", param="after")
        chosen = chosen[ids.index(after) + 1 :]
    limit = _limit(query.get("limit"), max_limit, default)
    page = chosen[:limit]
    first_id, last_id = (page[0].id, page[-1].id) if page else (None, None)
    return page, PageEnds(first_id, last_id, len(chosen) > limit)


def _limit(text: str | None, max_limit: int, default: int) -> int:
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text[:9]) <= max_limit:
        raise InvalidRequest(f"'limit' is {text[:40]!r}, must be 1 to {max_limit}", param="limit")
    return int(text)
