"""What the NATS service can be asked: the routes of the HTTP API that have one body and one answer.

Names are those of the subjects behind the service's own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec

from frontend.fields.request_body import convert, rid_of_body
from frontend.inference.inference import Aborted, Inference
from frontend.inference.tokenizing import Tokenizing
from frontend.jobs.job import Caller
from frontend.routes.load_routes import LoadRoutes
from frontend.routes.model_object import ModelListing
from frontend.stored.batches.batches import Batches
from frontend.stored.conversations import Conversations
from frontend.stored.erasing.erasing_service import ErasingService
from frontend.stored.files.files import Files
from frontend.stored.kept_responses import Responses
from frontend.surfaces.answer import Answer
from frontend.surfaces.tokens import ModelBody
from frontend.text.event_id import parse_event_id
from frontend.text.event_writer import encode_json
from shared.errors import InvalidRequest
from shared.protocol.logprobs import MAX_TOP_LOGPROBS
from shared.protocol.reply import Surface

Handler = Callable[[dict[str, Any], Caller], Awaitable[Answer | bytes]]


class IdBody(msgspec.Struct, frozen=True):
    """A body that names one thing."""

    id: str


class _ResponseQuery(msgspec.Struct, frozen=True):
    id: str
    stream: bool = False
    starting_after: Annotated[int, msgspec.Meta(ge=0, le=1 << 53)] | None = None


class _TokensQuery(msgspec.Struct, frozen=True):
    stream_id: str
    choice: Annotated[int, msgspec.Meta(ge=0, lt=1 << 30)] = 0
    top: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOP_LOGPROBS)] = 0


class PageQuery(msgspec.Struct, frozen=True):
    """What lists are asked with; each takes its own."""

    id: str = ""
    limit: int | None = None
    after: str | None = None
    order: str | None = None
    purpose: str | None = None
    since: int | None = None
    model: str | None = None

    def query(self) -> dict[str, str]:
        """The query as a URL would have it."""
        fields = msgspec.structs.asdict(self)
        return {name: str(value) for name, value in fields.items() if value is not None}


class NatsEndpoints:
    """Each is handled by what handles the HTTP route, so that answers and errors are the same."""

    def __init__(
        self,
        inference: Inference,
        responses: Responses,
        batches: Batches,
        files: Files,
        listing: ModelListing,
        tokenizing: Tokenizing,
        loads: LoadRoutes,
        erasing: ErasingService,
    ) -> None:
        self._inference = inference
        self._responses = responses
        self._batches = batches
        self._files = files
        self._listing = listing
        self._tokenizing = tokenizing
        self._loads = loads
        self._erasing = erasing

    def handlers(self) -> dict[str, Handler]:
        return {
            "chat.completions": self._starter(Surface.CHAT),
            "chat.completions.batch": self._starter(Surface.CHAT_BATCH),
            "completions": self._starter(Surface.COMPLETIONS),
            "generate": self._starter(Surface.GENERATE),
            "infill": self._starter(Surface.INFILL),
            "embed": self._starter(Surface.EMBEDDINGS),
            "score": self._starter(Surface.SCORE),
            "rerank": self._starter(Surface.RERANK),
            "classify": self._starter(Surface.CLASSIFY),
            "pooling": self._starter(Surface.POOLING),
            "audio.transcriptions": self._starter(Surface.TRANSCRIPTION),
            "audio.translations": self._starter(Surface.TRANSLATION),
            "responses": self._starter(Surface.RESPONSES),
            "responses.get": self._get_response,
            "responses.cancel": of_id(self._responses.cancel),
            "responses.delete": of_id(self._responses.delete),
            "responses.input_items": self._list_input_items,
            "batches": self._create_batch,
            "batches.get": of_id(self._batches.get),
            "batches.list": self._list_batches,
            "batches.cancel": of_id(self._batches.cancel),
            "files.get": of_id(self._files.get),
            "files.list": self._list_files,
            "files.delete": of_id(self._files.delete),
            "fork": self._starter(Surface.FORK),
            "tokens": self._tokens,
            "streams.list": self._list_streams,
            "resume": self._resume,
            "abort": self._abort,
            "erase": self._erase,
            "models": self._list_models,
            "tokenize": self._tokenize,
            "detokenize": self._detokenize,
            "tokenizer_info": self._tokenizer_info,
            "loads": self._answer_loads,
        }

    def _starter(self, surface: Surface) -> Handler:
        async def start(body: dict[str, Any], caller: Caller) -> Answer:
            return await self._inference.start(surface, body, caller)

        return start

    async def _resume(self, body: dict[str, Any], caller: Caller) -> Answer:
        event_id = None
        if isinstance(text := body.get("event_id"), str):
            event_id = parse_event_id(text)
            group_id = event_id.group_id
        elif body.get("event_id") is None:
            group_id = rid_of_body(body)
        else:
            raise InvalidRequest("'event_id' must be a string", param="event_id")
        stream = body.get("stream") is not False
        if not stream:
            event_id = None
        looks_on = body.get("watch") is True
        return await self._inference.resume(
            group_id, event_id, caller, stream=stream, looks_on=looks_on
        )

    async def _tokens(self, body: dict[str, Any], caller: Caller) -> bytes:
        query = convert(body, _TokensQuery)
        tokens = await self._inference.tokens(query.stream_id, query.choice, caller, query.top)
        return encode_json(tokens)

    async def _list_streams(self, body: dict[str, Any], caller: Caller) -> bytes:
        page = convert(body, PageQuery)
        return encode_json(await self._inference.kept(page.query(), caller))

    async def _get_response(self, body: dict[str, Any], caller: Caller) -> Answer | bytes:
        query = convert(body, _ResponseQuery)
        if query.stream:
            number = -1 if query.starting_after is None else query.starting_after
            return await self._responses.stream(query.id, number, caller)
        if query.starting_after is not None:
            raise InvalidRequest("'starting_after' is of a stream", param="starting_after")
        return encode_json(await self._responses.get(query.id, caller))

    async def _list_input_items(self, body: dict[str, Any], caller: Caller) -> bytes:
        page = convert(body, PageQuery)
        return encode_json(await self._responses.input_items(page.id, page.query(), caller))

    async def _create_batch(self, body: dict[str, Any], caller: Caller) -> bytes:
        return encode_json(await self._batches.create(body, caller))

    async def _list_batches(self, body: dict[str, Any], caller: Caller) -> bytes:
        return encode_json(await self._batches.all(convert(body, PageQuery).query(), caller))

    async def _list_files(self, body: dict[str, Any], caller: Caller) -> bytes:
        return encode_json(await self._files.all(convert(body, PageQuery).query(), caller))

    async def _abort(self, body: dict[str, Any], caller: Caller) -> bytes:
        rid = rid_of_body(body)
        num_aborted = await self._inference.abort(rid, caller)
        return encode_json(Aborted(rid=rid, num_aborted=num_aborted))

    async def _erase(self, body: dict[str, Any], caller: Caller) -> bytes:
        return encode_json(await self._erasing.erase(rid_of_body(body), caller))

    async def _list_models(self, body: dict[str, Any], caller: Caller) -> bytes:
        return await self._listing.all()

    async def _tokenize(self, body: dict[str, Any], caller: Caller) -> bytes:
        return await self._tokenizing.tokenize(body, caller)

    async def _detokenize(self, body: dict[str, Any], caller: Caller) -> bytes:
        return await self._tokenizing.detokenize(body, caller)

    async def _tokenizer_info(self, body: dict[str, Any], caller: Caller) -> bytes:
        return await self._tokenizing.info(convert(body, ModelBody).model)

    async def _answer_loads(self, body: dict[str, Any], caller: Caller) -> bytes:
        return await self._loads.answer(convert(body, ModelBody).model)


def of_id(act: Callable[[str, Caller], Awaitable[object]]) -> Handler:
    """The body names one thing by its `id`."""

    async def handle(body: dict[str, Any], caller: Caller) -> bytes:
        return encode_json(await act(convert(body, IdBody).id, caller))

    return handle


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
