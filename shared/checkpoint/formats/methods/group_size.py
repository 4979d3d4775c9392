"""How many columns share a scale, as tools write it."""

from __future__ import annotations

from shared.checkpoint.formats.section import Section


def group_size_of(section: Section, size: int) -> int | None:
    """-1 is a whole row: None. Raises ConfigError for what is no size."""
    if size == -1:
        return None
    if size < 1:
        raise section.error(f"group_size={size} is not supported")
    return size
