"""The body that makes a batch."""

from __future__ import annotations

import re

import msgspec

from frontend.stored.files.file_record import FileExpiry
from shared.errors import InvalidRequest

WINDOW_PATTERN = "^[1-9][0-9]{0,5}[smhd]$"
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class BatchBody(msgspec.Struct, frozen=True):
    """POST /v1/batches."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: FileExpiry | None = None

    def window_s(self, max_window_s: float) -> float:
        """How long it may take. Raises InvalidRequest."""
        text, window_s = self.completion_window, 0.0
        if re.search(WINDOW_PATTERN, text) and not text.endswith("\n"):
            window_s = float(int(text[:-1]) * _UNIT_S[text[-1]])
        if not 0 < window_s <= max_window_s:
            raise InvalidRequest(
                f"'completion_window' is {text[:40]!r}, must be like 24h (s, m, h or d), and at "
                f"most {max_window_s:g} s",
                param="completion_window",
            )
        return window_s
