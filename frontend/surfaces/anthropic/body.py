"""Bodies of POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from typing import Any

import msgspec

from frontend.fields.peer_fields import Touches, changing, peer_refusals
from frontend.fields.request_body import Refused, always, non_empty


class MessageBody(msgspec.Struct, omit_defaults=True):
    """The fields that have an effect; None means default."""

    model: str | None = None
    messages: Any = None
    max_tokens: int | None = None
    system: Any = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    tools: Any = None
    tool_choice: Any = None
    thinking: Any = None
    output_config: Any = None


_OWN: Refused = {
    "container": always,
    "context_management": always,
    "mcp_servers": non_empty,
    "output_format": always,  # an older name of output_config.format
    "inference_geo": always,
    "speed": lambda value: value != "standard",
}
# Caches need no marks here, and the rest says who pays.
IGNORED = changing(Touches.NOTHING) | frozenset(
    {
        "cache_control",
        "diagnostics",
        "metadata",
        "service_tier",
        "user_profile_id",
        "workspace_id",
        "idempotency_key",
        "queue_timeout_s",
        "request_id",
        "rid",
    }
)
REFUSED = peer_refusals(MessageBody, _OWN, ignored=IGNORED)
