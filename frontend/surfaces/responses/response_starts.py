"""What is stored of a response before its request is queued."""

from __future__ import annotations

from frontend.jobs.stored_response import Conversation, StoredResponse
from frontend.surfaces.responses.conversation_store import ConversationStore
from frontend.surfaces.responses.store import ResponseStore


class ResponseStarts:
    """Its record, and in the conversation that it goes on with, its name."""

    def __init__(self, responses: ResponseStore, conversations: ConversationStore) -> None:
        self._responses = responses
        self._conversations = conversations

    async def keep(self, record: StoredResponse) -> int:
        """Returns the sequence that the result has to follow; doing it twice is harmless.

        Raises RequestTooLarge or ServiceUnavailable.
        """
        return await self._responses.put(record)

    async def begin(self, conversation: Conversation, rid: str) -> None:
        """Doing it twice is harmless. Raises ConversationLocked, RequestTooLarge or
        ServiceUnavailable.
        """
        await self._conversations.begin(conversation, rid)

    async def forget(self, rid: str) -> None:
        """Forgets a request that was not accepted; a failure leaves rubbish, nothing worse."""
        await self._responses.forget(rid)
