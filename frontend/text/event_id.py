"""Event ids: any one of them tells where to resume all choices of a stream.

`<group>.<pos>.<len>.<hash>` for one choice, `<group>.<pos>.<len>.<hash>_<pos>.<len>.<hash>_...` for
several: token position, code points of text, and a checksum of that text as 8 hex digits.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from shared.errors import InvalidRequest
from shared.subjects import is_rid

MAX_CHOICES = 4096

_MARK = re.compile(r"(\d{1,10})\.(\d{1,10})\.([0-9a-f]{8})")


class Mark(NamedTuple):
    """How far the text of one choice has got."""

    position: int  # output tokens
    text_len: int  # code points
    checksum: int  # of that text, as detokenizers tell it of theirs

    def __str__(self) -> str:
        return f"{self.position}.{self.text_len}.{self.checksum:08x}"


START = Mark(0, 0, 0)


class EventId(NamedTuple):
    """Where a client is in the stream of a group."""

    group_id: str
    marks: tuple[Mark, ...]

    def __str__(self) -> str:
        return f"{self.group_id}.{'_'.join(map(str, self.marks))}"


def parse_event_id(text: str) -> EventId:
    """Raises InvalidRequest."""
    group_id, _, rest = text.strip().partition(".")
    marks = [_MARK.fullmatch(part) for part in rest.split("_", MAX_CHOICES)]
    if not is_rid(group_id) or len(marks) > MAX_CHOICES or None in marks:
        raise InvalidRequest(
            f"Last-Event-ID {text[:100]!r} is not an event id of a stream", param="Last-Event-ID"
        )
    return EventId(
        group_id,
        tuple(Mark(int(m[1]), int(m[2]), int(m[3], 16)) for m in marks if m is not None),
    )
