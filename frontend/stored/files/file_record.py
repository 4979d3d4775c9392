"""A stored file as its record tells it, and when clients ask for it to go."""

from __future__ import annotations

import re
import secrets
from typing import Literal

import msgspec

from shared.errors import InvalidRequest

Purpose = Literal["batch", "batch_output"]
UPLOADED: Purpose = "batch"
MADE: Purpose = "batch_output"
SHORTEST_TTL_S = 3600  # that a client may ask for

_FILE_ID = re.compile(r"file-[0-9a-f]{32}")


class FileRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """An entry of the KV bucket `files`, written when the content is stored as a whole."""

    id: str
    owner: str  # hash of the tenant's id
    filename: str
    purpose: Purpose
    num_bytes: int
    created: float  # unix seconds
    expires: float


def new_file_id() -> str:
    """One that nobody can guess."""
    return f"file-{secrets.token_hex(16)}"


def is_file_id(text: str) -> bool:
    """Whether a client's text may be one; only then it may enter a subject."""
    return _FILE_ID.fullmatch(text) is not None


class FileExpiry(msgspec.Struct, frozen=True):
    """When a file is to go: OpenAI's `expires_after`."""

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
