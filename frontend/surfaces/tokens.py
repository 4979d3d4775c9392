"""The bodies and answers of /tokenize, /detokenize, and what tells of a tokenizer."""

from __future__ import annotations

from typing import Any

import msgspec

from frontend.fields.peer_fields import Touches, changing, peer_refusals
from frontend.fields.request_body import IGNORED as GENERAL_IGNORED
from frontend.fields.request_body import Refused, always, non_empty
from frontend.surfaces.chat.reasoning import Effort
from frontend.surfaces.tools.tool_shapes import ChatToolChoice, ChatTools
from frontend.text.wire_struct import Count, WireStruct


class Tokenized(WireStruct, frozen=True, kw_only=True):
    """The ids of a prompt."""

    count: Count
    max_model_len: Count
    tokens: list[Count]
    token_strs: list[str | None] | None  # where they were asked for


class Detokenized(WireStruct, frozen=True, kw_only=True):
    """The text of ids."""

    prompt: str


class Templated(WireStruct, frozen=True, kw_only=True):
    """The text that a chat becomes."""

    prompt: str


class TokenizerInfo(WireStruct, frozen=True, kw_only=True):
    """What a tokenizer's files say of it, in the words of tokenizer_config.json."""

    model: str
    max_model_len: Count
    vocab_size: Count
    tokenizer_hash: str
    tokenizer_class: str | None
    bos_token: str | None
    eos_token: str | None
    unk_token: str | None
    sep_token: str | None
    pad_token: str | None
    cls_token: str | None
    chat_template: str | None


class PropsParams(WireStruct, frozen=True, kw_only=True):
    """How a model samples when a request says nothing."""

    temperature: float
    top_p: float
    top_k: float
    min_p: float
    repeat_penalty: float


class PropsSettings(WireStruct, frozen=True, kw_only=True):
    """What a request gets that says nothing."""

    n_ctx: Count
    params: PropsParams


class Modalities(WireStruct, frozen=True, kw_only=True):
    """What a model takes beside text."""

    vision: bool
    audio: bool


class Props(WireStruct, frozen=True, kw_only=True):
    """What llama.cpp's `/props` tell of a model."""

    default_generation_settings: PropsSettings
    model_alias: str
    modalities: Modalities
    chat_template: str
    bos_token: str
    eos_token: str


class TemplateBody(msgspec.Struct, omit_defaults=True):
    """A chat: all fields that change what its template makes of it. None means default."""

    model: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    tools: ChatTools | None = None
    tool_choice: ChatToolChoice | None = None
    reasoning_effort: Effort | None = None


class TokenizeBody(TemplateBody, omit_defaults=True):
    """A text, or a chat."""

    prompt: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


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
# Nothing is generated.
IGNORED = GENERAL_IGNORED | changing(Touches.OUTPUT, Touches.ANSWER)
_OWN: Refused = {"mm_processor_kwargs": always, "chat_template": always}
REFUSED = peer_refusals(TokenizeBody, _OWN, ignored=IGNORED)
TEMPLATE_REFUSED = peer_refusals(TemplateBody, _OWN, ignored=IGNORED)
DETOKENIZE_IGNORED = IGNORED | changing(Touches.PROMPT) - {"skip_special_tokens"}
DETOKENIZE_REFUSED: Refused = {"skip_special_tokens": non_empty}
