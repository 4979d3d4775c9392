"""JSON Schema of the form by which files are uploaded."""

from __future__ import annotations

from typing import Any

from frontend.stored.files.file_record import UPLOADED


def file_form() -> dict[str, Any]:
    """Its fields are those of multipart/form-data."""
    return {
        "type": "object",
        "properties": {
            "purpose": {"enum": [UPLOADED]},
            "file": {"type": "string", "format": "binary"},
            "expires_after[anchor]": {"const": "created_at"},
            "expires_after[seconds]": {"type": "integer", "minimum": 0},
        },
        "required": ["purpose", "file"],
    }
