"""What the NATS service can be asked of conversations: as the HTTP routes, by `id`."""

from __future__ import annotations

from typing import Any

import msgspec

from frontend.fields.request_body import convert
from frontend.jobs.job import Caller
from frontend.nats.endpoints import Handler, IdBody, PageQuery, of_id
from frontend.stored.conversations import Conversations
from frontend.text.event_writer import encode_json


class _ItemName(msgspec.Struct, frozen=True):
    """One item of one conversation."""

    id: str
    item_id: str


class ConversationEndpoints:
    """Each is handled by what handles the HTTP route, so that answers and errors are the same."""

    def __init__(self, conversations: Conversations) -> None:
        self._conversations = conversations

    def handlers(self) -> dict[str, Handler]:
        return {
            "conversations": self._create,
            "conversations.get": of_id(self._conversations.get),
            "conversations.change": self._change,
            "conversations.delete": of_id(self._conversations.delete),
            "conversations.items": self._list_items,
            "conversations.items.add": self._add_items,
            "conversations.items.get": self._get_item,
            "conversations.items.delete": self._delete_item,
        }

    async def _create(self, body: dict[str, Any], caller: Caller) -> bytes:
        return encode_json(await self._conversations.create(body, caller))

    async def _change(self, body: dict[str, Any], caller: Caller) -> bytes:
        name, fields = _id_apart(body)
        return encode_json(await self._conversations.change(name, fields, caller))

    async def _list_items(self, body: dict[str, Any], caller: Caller) -> bytes:
        page = convert(body, PageQuery)
        return encode_json(await self._conversations.items(page.id, page.query(), caller))

    async def _add_items(self, body: dict[str, Any], caller: Caller) -> bytes:
        name, fields = _id_apart(body)
        return encode_json(await self._conversations.add_items(name, fields, caller))

    async def _get_item(self, body: dict[str, Any], caller: Caller) -> bytes:
        names = convert(body, _ItemName)
        return encode_json(await self._conversations.item(names.id, names.item_id, caller))

    async def _delete_item(self, body: dict[str, Any], caller: Caller) -> bytes:
        names = convert(body, _ItemName)
        left = await self._conversations.delete_item(names.id, names.item_id, caller)
        return encode_json(left)


def _id_apart(body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The conversation that a body names, and what the body of the HTTP route would hold."""
    name = convert(body, IdBody).id
    return name, {key: value for key, value in body.items() if key != "id"}
