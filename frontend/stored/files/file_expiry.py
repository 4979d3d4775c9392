"""When a file is to go, as clients ask for it."""

from __future__ import annotations

import msgspec

from frontend.stored.files.file_record import SHORTEST_TTL_S
from shared.errors import InvalidRequest


class FileExpiry(msgspec.Struct, frozen=True):
    """OpenAI's `expires_after`."""

    anchor: str
    seconds: int

    def ttl_s(self, param: str) -> float:
        """Raises InvalidRequest."""
        if self.anchor != "created_at":
            raise InvalidRequest(
                f"'{param}.anchor' is {self.anchor[:40]!r}, must be 'created_at'", param=param
            )
        return checked_ttl_s(self.seconds, param)


def checked_ttl_s(value: object, param: str) -> float:
    """Seconds that a file is kept. Raises InvalidRequest."""
    text = str(value)
    if not (text.isascii() and text.isdigit()) or int(text[:12]) < SHORTEST_TTL_S:
        raise InvalidRequest(
            f"'{param}' is {text[:40]!r}, must be {SHORTEST_TTL_S} or more", param=param
        )
    return float(text)
