"""Bodies of POST /v1/chat/completions/batch, vLLM's: many conversations in one request."""

from __future__ import annotations

from typing import Any

from frontend.fields.peer_fields import peer_refusals
from frontend.fields.request_body import (
    IGNORED,
    BodyReader,
    Refused,
    always,
    check_num_messages,
    non_empty,
    required_model,
)
from frontend.jobs.job import Caller, Job
from frontend.surfaces.chat.chat_request import Chat, ChatFields, ChatRequests
from frontend.surfaces.chat.messages import Conversation
from shared.errors import InvalidRequest

MAX_CONVERSATIONS = 256


class ChatBatchBody(ChatFields, omit_defaults=True):
    """Chats that are asked in the same way."""

    messages: list[list[dict[str, Any]]] | None = None


# What an answer has once, or in place of one choice for each conversation.
_OWN: Refused = {
    "n": lambda value: value != 1,
    "use_beam_search": non_empty,
    "prompt_logprobs": always,
    "return_token_ids": non_empty,
}
REFUSED = peer_refusals(ChatBatchBody, _OWN, ignored=IGNORED)


class ChatBatches:
    """Turns bodies into jobs: a prompt and a choice for each conversation."""

    def __init__(self, chats: ChatRequests) -> None:
        self._chats = chats
        self._reader = BodyReader(ChatBatchBody, REFUSED)

    async def job(self, raw: dict[str, Any], caller: Caller) -> Job:
        """Raises RequestError."""
        body = self._reader.read(raw, caller.unknown)
        required_model(body.model)
        conversations = body.messages or []
        if not 1 <= len(conversations) <= MAX_CONVERSATIONS:
            raise InvalidRequest(
                f"'messages' holds {len(conversations)} conversations, must hold 1 to "
                f"{MAX_CONVERSATIONS}",
                param="messages",
            )
        check_num_messages(sum(map(len, conversations)))
        checked = [
            Conversation.of(messages, f"messages[{i}]") for i, messages in enumerate(conversations)
        ]
        return await self._chats.job_of(Chat.of_many(body, checked), caller)
