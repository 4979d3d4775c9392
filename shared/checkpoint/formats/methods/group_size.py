"""How many columns share a scale, and how many bits a value has, as tools write it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shared.checkpoint.formats.section import Section


def group_size_of(section: Section, size: int) -> int | None:
    """-1 is a whole row: None. Raises ConfigError for what is no size."""
    if size == -1:
        return None
    if size < 1:
        raise section.error(f"group_size={size} is not supported")
    return size


def word_sizes_of(
    section: Section, num_bits: Any, size: Any, possible: Sequence[int]
) -> tuple[int, int | None]:
    """Bits and group size of packed words, which a module may have of its own, and of any type.

    Bits are one of `possible`. Raises ConfigError.
    """
    if type(num_bits) is not int or num_bits not in possible:
        raise section.error(f"bits={num_bits} is not supported, only {possible} are")
    if type(size) is not int:
        raise section.error(f"group_size={size!r} is not supported")
    return num_bits, group_size_of(section, size)
