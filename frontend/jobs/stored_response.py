"""What is kept of a response: what was asked, and behind it in the store, the result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from frontend.models.model_directory import ModelText
from shared.protocol.reply import ReplyParams, TextParams
from shared.protocol.request import GenerateRequest
from shared.protocol.sealed_replies import unseal
from shared.protocol.text import Done


class ResponseParams(msgspec.Struct, frozen=True):
    """What a response object says of its request, by OpenAI's names and in its values."""

    background: bool
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    previous_response_id: str | None
    store: bool
    temperature: float
    text: dict[str, Any]
    top_logprobs: int
    top_p: float
    max_tool_calls: int | None = None
    parallel_tool_calls: bool = True
    reasoning: dict[str, Any] | None = None
    tool_choice: str | dict[str, Any] = "auto"
    tools: list[dict[str, Any]] = []
    truncation: str = "disabled"
    conversation: dict[str, str] | None = None  # its `id`


class StoredResponse(msgspec.Struct, frozen=True):
    """All that any frontend needs to show a response and its stream, but for the output."""

    reply: ReplyParams
    tokenizer_hash: str
    text: TextParams
    params: ResponseParams
    items: list[dict[str, Any]]  # the conversation: what earlier responses had, then the input

    @classmethod
    def of(
        cls, request: GenerateRequest, params: ResponseParams, items: list[dict[str, Any]]
    ) -> StoredResponse:
        return cls(unseal(request.reply), request.tokenizer_hash, request.text, params, items)

    @property
    def rid(self) -> str:
        """A response is one request."""
        return self.reply.group_id


@dataclass(frozen=True, slots=True)
class KeptResponse:
    """A response as the store has it, and the log."""

    record: StoredResponse
    seq: int  # of the record, which the result follows
    done: Done | None  # None while it waits or runs
    is_queued: bool = False  # no worker has it


class RecordOwner(msgspec.Struct, frozen=True):
    """Whose a record is, where erasers look in all that is stored."""

    owner: str
    group_id: str


class ConversationRecord(msgspec.Struct, frozen=True):
    """What is kept of a conversation, but for the response that was begun in it last."""

    reply: RecordOwner
    created: int  # unix seconds
    metadata: dict[str, str]
    items: list[dict[str, Any]]
    running: str = ""  # rid of that response, until a later record has its items


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation as of now: with the items of each response that has ended."""

    id: str
    record: ConversationRecord
    seq: int  # of its last message
    is_running: bool  # a response is being made in it
    is_older: bool = False  # it is in the store that the service has moved away from

    @property
    def items(self) -> list[dict[str, Any]]:
        return self.record.items


@dataclass(frozen=True, slots=True)
class ResponseView:
    """What the events of a response are made from, besides its tokens."""

    record: StoredResponse
    model_text: ModelText
