"""Anthropic's own client, for the tests that need it."""

from __future__ import annotations

from types import ModuleType


def anthropic_sdk() -> ModuleType:
    """Imported late: that takes four seconds of CPU, in each process that collects tests."""
    import anthropic

    return anthropic
