"""Which images by URL a frontend fetches."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FetchPolicy:
    """What may be fetched."""

    is_on: bool
    allow_http: bool
    allowed_domains: tuple[str, ...]  # they and those below them; empty: all
    timeout_s: float  # for an image, with redirects
    max_bytes: int
