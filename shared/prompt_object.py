"""Prompts that are too long to travel inside their request."""

from __future__ import annotations

INLINE_PROMPT_BYTES = 256 * 1024


def prompt_object(rid: str, num_prompt_tokens: int) -> str:
    """Object store name of a prompt; "" when it travels inline."""
    return f"prompt-{rid}" if 4 * num_prompt_tokens > INLINE_PROMPT_BYTES else ""


def dead_prompt_object(rid: str) -> str:
    """Of the copy that a dead request keeps: the frontend deletes the other one."""
    return f"dead-prompt-{rid}"
