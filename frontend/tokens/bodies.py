"""Bodies of POST /tokenize and /detokenize."""

from __future__ import annotations

from typing import Any

import msgspec

from frontend.requests.request_body import Refused, always


class TokenizeBody(msgspec.Struct, omit_defaults=True):
    """A text, or a chat: of that, all fields that change its prompt. None means default."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    tools: Any = None
    tool_choice: Any = None
    reasoning_effort: Any = None


class DetokenizeBody(msgspec.Struct, omit_defaults=True):
    """Token ids."""

    model: str | None = None
    tokens: list[int] | None = None


class ModelBody(msgspec.Struct, omit_defaults=True):
    """Over NATS; HTTP has it in the query."""

    model: str | None = None


OF_CHAT = frozenset(
    {
        "add_generation_prompt",
        "continue_final_message",
        "chat_template_kwargs",
        "documents",
        "tools",
        "tool_choice",
        "reasoning_effort",
    }
)
REFUSED: Refused = {
    "chat_template": always,
    "mm_processor_kwargs": always,
    "truncate_prompt_tokens": always,
}
