"""Conversations for their clients: made, read, changed and deleted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from frontend.fields.request_body import BodyReader
from frontend.inference.inference import Inference
from frontend.jobs.job import Caller
from frontend.jobs.stored_response import Conversation
from frontend.stored.kept_responses import items_page
from frontend.surfaces.responses.conversation_store import ConversationStore
from frontend.surfaces.responses.input_items import check_calls, input_items
from frontend.surfaces.responses.request import MAX_CHAIN_ITEMS, check_metadata
from frontend.surfaces.responses.response_answer import (
    ConversationDeleted,
    ConversationObject,
    InputItems,
)
from shared.errors import (
    BrokerError,
    ConversationLocked,
    InvalidRequest,
    NotFound,
    ServiceUnavailable,
)

MAX_NEW_ITEMS = 20  # OpenAI's, of one request


class ConversationBody(msgspec.Struct, omit_defaults=True):
    """POST /v1/conversations."""

    items: Any = None
    metadata: dict[str, str] | None = None


class ConversationChange(msgspec.Struct, omit_defaults=True):
    """POST /v1/conversations/{id}."""

    metadata: dict[str, str] | None = None


class ConversationItems(msgspec.Struct, omit_defaults=True):
    """POST /v1/conversations/{id}/items."""

    items: Any = None


class Conversations:
    """Whichever frontend is asked: all of it is in the store, or in the log."""

    def __init__(self, inference: Inference, store: ConversationStore) -> None:
        self._inference = inference
        self._store = store
        self._bodies = BodyReader(ConversationBody, {}, frozenset())
        self._changes = BodyReader(ConversationChange, {}, frozenset())
        self._items = BodyReader(ConversationItems, {}, frozenset())

    async def create(self, raw: Mapping[str, Any], caller: Caller) -> ConversationObject:
        """Raises RequestError."""
        self._inference.admit_call(caller)
        body = self._bodies.read(raw, caller.unknown)
        check_metadata(body.metadata)
        items = [] if body.items in (None, []) else _new_items(body.items, [])
        return _object_of(await self._store.create(caller.owner, body.metadata or {}, items))

    async def get(self, conversation_id: str, caller: Caller) -> ConversationObject:
        """Raises NotFound or ServiceUnavailable."""
        return _object_of(await self._store.get(conversation_id, caller.owner))

    async def change(
        self, conversation_id: str, raw: Mapping[str, Any], caller: Caller
    ) -> ConversationObject:
        """Other metadata. Raises RequestError."""
        self._inference.admit_call(caller)
        body = self._changes.read(raw, caller.unknown)
        if body.metadata is None:
            raise InvalidRequest("'metadata' is required", param="metadata", code="missing_field")
        check_metadata(body.metadata)
        found = await self._store.get(conversation_id, caller.owner)
        return _object_of(await self._store.change(found, metadata=body.metadata))

    async def delete(self, conversation_id: str, caller: Caller) -> ConversationDeleted:
        """Deletes it for good; a response that is being made in it runs on. Raises RequestError."""
        found = await self._store.get(conversation_id, caller.owner)
        try:
            await self._store.delete(found)
        except BrokerError as exc:
            raise ServiceUnavailable("The conversation could not be deleted now.") from exc
        return ConversationDeleted(id=found.id, object="conversation.deleted", deleted=True)

    async def items(
        self, conversation_id: str, query: Mapping[str, str], caller: Caller
    ) -> InputItems:
        """A page of them, the latest first. Raises RequestError."""
        found = await self._store.get(conversation_id, caller.owner)
        return items_page(found.items, query)

    async def add_items(
        self, conversation_id: str, raw: Mapping[str, Any], caller: Caller
    ) -> InputItems:
        """Returns those that are new. Raises RequestError."""
        self._inference.admit_call(caller)
        body = self._items.read(raw, caller.unknown)
        found = await self._unlocked(conversation_id, caller)
        items = _new_items(body.items, found.items)
        await self._store.change(found, items=found.items + items)
        return items_page(items, {"order": "asc"})

    async def item(self, conversation_id: str, item_id: str, caller: Caller) -> dict[str, Any]:
        """Raises NotFound or ServiceUnavailable."""
        found = await self._store.get(conversation_id, caller.owner)
        return found.items[_index_of(found, item_id)]

    async def delete_item(
        self, conversation_id: str, item_id: str, caller: Caller
    ) -> ConversationObject:
        """Returns the conversation. Raises RequestError."""
        self._inference.admit_call(caller)
        found = await self._unlocked(conversation_id, caller)
        idx = _index_of(found, item_id)
        items = found.items[:idx] + found.items[idx + 1 :]
        return _object_of(await self._store.change(found, items=items))

    async def _unlocked(self, conversation_id: str, caller: Caller) -> Conversation:
        """Raises ConversationLocked while a response is being made in it."""
        found = await self._store.get(conversation_id, caller.owner)
        if found.is_running:
            raise ConversationLocked(found.id)
        return found


def _new_items(value: Any, earlier: list[dict[str, Any]]) -> list[dict[str, Any]]:
    items = input_items(value, "items", MAX_NEW_ITEMS)
    num_items = len(earlier) + len(items)
    if num_items > MAX_CHAIN_ITEMS:
        raise InvalidRequest(
            f"The conversation would have {num_items} items, at most {MAX_CHAIN_ITEMS}",
            param="items",
        )
    check_calls(earlier + items, len(earlier), "items")
    return items


def _index_of(found: Conversation, item_id: str) -> int:
    """Raises NotFound."""
    for idx, item in enumerate(found.items):
        if item["id"] == item_id:
            return idx
    raise NotFound(
        f"The conversation {found.id!r} has no item {item_id[:64]!r}.", code="item_not_found"
    )


def _object_of(found: Conversation) -> ConversationObject:
    record = found.record
    return ConversationObject(
        id=found.id, object="conversation", created_at=record.created, metadata=record.metadata
    )
