"""Files as OpenAI shows them."""

from __future__ import annotations

from typing import Literal

from frontend.stored.files.file_record import FileRecord, Purpose
from frontend.text.wire_struct import Count, WireStruct


class File(WireStruct, frozen=True, kw_only=True):
    """One of them."""

    id: str
    object: Literal["file"]
    bytes: Count
    created_at: Count  # unix seconds
    expires_at: Count
    filename: str
    purpose: Purpose
    status: Literal["processed"]
    status_details: None


class FileList(WireStruct, frozen=True, kw_only=True):
    """A page of them."""

    object: Literal["list"]
    data: list[File]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(WireStruct, frozen=True, kw_only=True):
    """One that is gone."""

    id: str
    object: Literal["file"]
    deleted: Literal[True]


def file_object(record: FileRecord) -> File:
    """What its record says."""
    return File(
        id=record.id,
        object="file",
        bytes=record.num_bytes,
        created_at=int(record.created),
        expires_at=int(record.expires),
        filename=record.filename,
        purpose=record.purpose,
        status="processed",
        status_details=None,
    )
