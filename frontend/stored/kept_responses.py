"""Kept responses after their creation: read, streamed again, cancelled, deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from frontend.inference.inference import Inference
from frontend.jobs.job import Caller
from frontend.jobs.stored_response import KeptResponse, ResponseView
from frontend.models.model_directory import ModelDirectory
from frontend.surfaces.answer import Answer
from frontend.surfaces.responses.conversation_store import ConversationStore
from frontend.surfaces.responses.object import done_response, unfinished_response
from frontend.surfaces.responses.response_answer import InputItems, Response, ResponseDeleted
from frontend.surfaces.responses.store import ResponseStore
from frontend.text.event_writer import public_id
from shared.errors import BrokerError, InvalidRequest, ServiceUnavailable

MAX_PAGE = 100
_DEFAULT_PAGE = 20
_RESULT_TIMEOUT_S = 5.0  # from a cancellation to the result that the detokenizer writes
_RESULT_POLL_S = 0.05


class Responses:
    """Whichever frontend is asked: all of it is in the store, or in the log."""

    def __init__(
        self,
        inference: Inference,
        store: ResponseStore,
        conversations: ConversationStore,
        models: ModelDirectory,
    ) -> None:
        self._inference = inference
        self._store = store
        self._conversations = conversations
        self._models = models

    async def get(self, response_id: str, caller: Caller) -> Response:
        """The response object as of now. Raises NotFound or ServiceUnavailable."""
        return await self._object(await self._store.get(response_id, caller.owner))

    async def stream(self, response_id: str, starting_after: int, caller: Caller) -> Answer:
        """Its events behind a number. Raises RequestError."""
        kept = await self._store.get(response_id, caller.owner)
        if kept.done is not None and kept.done.text and not kept.done.token_ids:
            raise InvalidRequest(
                "This response is too long to be streamed again; get it without 'stream'.",
                param="stream",
            )
        return await self._inference.read_response(kept, caller, starting_after)

    async def cancel(self, response_id: str, caller: Caller) -> Response:
        """End it unless it has ended; returns the object. Raises RequestError."""
        kept = await self._store.get(response_id, caller.owner)
        if not kept.record.params.background:
            raise InvalidRequest(
                "Only a response with 'background': true can be cancelled; of any other one, "
                "close the connection.",
                param="response_id",
            )
        return await self._object(await self._ended(kept, caller))

    async def delete(self, response_id: str, caller: Caller) -> ResponseDeleted:
        """Deletes it for good; it is ended first when it runs. Raises RequestError."""
        kept = await self._store.get(response_id, caller.owner)
        if kept.done is None:
            await self._inference.abort(kept.record.rid, caller)
        elif (conversation := kept.record.params.conversation) is not None:
            await self._conversations.settle(conversation["id"], caller.owner)
        try:
            await self._store.delete(kept.record.rid)
        except BrokerError as exc:
            raise ServiceUnavailable("The response could not be deleted now.") from exc
        return ResponseDeleted(id=public_id(kept.record.reply), object="response", deleted=True)

    async def input_items(
        self, response_id: str, query: Mapping[str, str], caller: Caller
    ) -> InputItems:
        """A page of the conversation that the output answers, the latest item first.

        Raises RequestError.
        """
        return items_page((await self._store.get(response_id, caller.owner)).record.items, query)

    async def _ended(self, kept: KeptResponse, caller: Caller) -> KeptResponse:
        """The response with its result, once the detokenizer has written it."""
        if kept.done is not None:
            return kept
        record = kept.record
        await self._inference.abort(record.rid, caller)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _RESULT_TIMEOUT_S
        while kept.done is None and loop.time() < deadline:
            await asyncio.sleep(_RESULT_POLL_S)
            kept = await self._store.get(public_id(record.reply), caller.owner)
        return kept

    async def _object(self, kept: KeptResponse) -> Response:
        if kept.done is None:
            return unfinished_response(kept.record, "queued" if kept.is_queued else "in_progress")
        text = await self._models.text(kept.record.tokenizer_hash)
        return done_response(ResponseView(kept.record, text), kept.done)


def items_page(items: list[dict[str, Any]], query: Mapping[str, str]) -> InputItems:
    """A page of the items of a conversation. Raises InvalidRequest."""
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest(f"'order' is {order[:40]!r}, must be asc or desc", param="order")
    items = items if order == "asc" else items[::-1]
    limit = query_number(query, "limit", 1, MAX_PAGE) or _DEFAULT_PAGE
    start = 0
    if (after := query.get("after")) is not None:
        ids = [item["id"] for item in items]
        if after not in ids:
            raise InvalidRequest(
                f"'after' is {after[:100]!r}, which is no item of it", param="after"
            )
        start = ids.index(after) + 1
    page = items[start : start + limit]
    return InputItems(
        object="list",
        data=page,
        first_id=page[0]["id"] if page else "",
        last_id=page[-1]["id"] if page else "",
        has_more=start + limit < len(items),
    )


def query_number(query: Mapping[str, str], name: str, low: int, high: int) -> int | None:
    """None when it is not given. Raises InvalidRequest."""
    text = query.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and low <= int(text) <= high):
        raise InvalidRequest(f"'{name}' is {text[:40]!r}, must be {low} to {high}", param=name)
    return int(text)


def query_flag(query: Mapping[str, str], name: str) -> bool:
    """False when it is not given. Raises InvalidRequest."""
    text = query.get(name, "false").lower()
    if text not in ("true", "1", "false", "0"):
        raise InvalidRequest(f"'{name}' is {text[:40]!r}, must be true or false", param=name)
    return text in ("true", "1")
