"""JSON Schema of files."""

from __future__ import annotations

from typing import Any

from frontend.openapi.schemas.schema_words import COUNT, TEXT, object_of, page_of
from frontend.stored.files.file_record import MADE, UPLOADED


def file_schemas() -> dict[str, dict[str, Any]]:
    """A file, what it is uploaded by, a page of them, and one that is gone."""
    file = object_of(
        {
            "id": TEXT,
            "object": {"const": "file"},
            "bytes": COUNT,
            "created_at": COUNT,
            "expires_at": COUNT,
            "filename": TEXT,
            "purpose": {"enum": [UPLOADED, MADE]},
            "status": {"const": "processed"},
            "status_details": {"type": "null"},
        }
    )
    form = object_of(
        {
            "purpose": {"enum": [UPLOADED]},
            "file": {"type": "string", "format": "binary"},
            "expires_after[anchor]": {"const": "created_at"},
            "expires_after[seconds]": COUNT,
        },
        "expires_after[anchor]",
        "expires_after[seconds]",
    )
    deleted = {"id": TEXT, "object": {"const": "file"}, "deleted": {"const": True}}
    return {
        "File": file,
        "FileForm": form,
        "FileList": page_of("File"),
        "FileDeleted": object_of(deleted),
    }
