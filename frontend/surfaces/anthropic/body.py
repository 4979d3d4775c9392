"""Bodies of POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from frontend.fields.peer_fields import Touches, changing, peer_refusals
from frontend.fields.request_body import Refused, always, non_empty
from frontend.surfaces.anthropic.conversation import Turn
from frontend.surfaces.chat.messages import TextPart
from frontend.surfaces.chat.reasoning import Effort
from frontend.surfaces.tools.tool_shapes import MessageToolChoice, MessageTools


class Thinking(msgspec.Struct):
    """Whether to think aloud, how much, and whether it is shown."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None
    display: str | None = None


class OutputFormat(msgspec.Struct):
    """What the answer is: an object as `schema` describes it."""

    type: Literal["json_schema"]
    schema: Any = None


class OutputConfig(msgspec.Struct):
    """How the answer is made."""

    effort: Effort | None = None
    format: OutputFormat | None = None


class MessageBody(msgspec.Struct, omit_defaults=True):
    """The fields that have an effect; None means default."""

    model: str | None = None
    messages: list[Turn] | None = None
    max_tokens: int | None = None
    system: str | list[TextPart] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    tools: MessageTools | None = None
    tool_choice: MessageToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None


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
