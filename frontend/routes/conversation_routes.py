"""`/v1/conversations`: make, look at, change and delete, with their items."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from frontend.http.error_response import json_response
from frontend.http.http_request import HttpBodies
from frontend.jobs.job import Caller
from frontend.routes.api_route import ApiRoute
from frontend.stored.conversations import Conversations
from frontend.text.event_writer import encode_json

_ID, _ITEM_ID = "conversation_id", "item_id"


class ConversationRoutes:
    """Handlers of the HTTP surface."""

    def __init__(self, conversations: Conversations, bodies: HttpBodies) -> None:
        self._conversations = conversations
        self._bodies = bodies

    def routes(self) -> Sequence[ApiRoute]:
        path = "/v1/conversations/{conversation_id}"
        return [
            ApiRoute("POST", "/v1/conversations", self._create),
            ApiRoute("GET", path, self._get),
            ApiRoute("POST", path, self._change),
            ApiRoute("DELETE", path, self._delete),
            ApiRoute("GET", f"{path}/items", self._list_items),
            ApiRoute("POST", f"{path}/items", self._add_items),
            ApiRoute("GET", f"{path}/items/{{item_id}}", self._get_item),
            ApiRoute("DELETE", f"{path}/items/{{item_id}}", self._delete_item),
        ]

    async def _create(self, request: Request, caller: Caller) -> Response:
        with await self._bodies.read(request, caller) as body:
            return _answer(await self._conversations.create(body, caller), caller)

    async def _get(self, request: Request, caller: Caller) -> Response:
        return _answer(await self._conversations.get(request.path_params[_ID], caller), caller)

    async def _change(self, request: Request, caller: Caller) -> Response:
        name = request.path_params[_ID]
        with await self._bodies.read(request, caller) as body:
            return _answer(await self._conversations.change(name, body, caller), caller)

    async def _delete(self, request: Request, caller: Caller) -> Response:
        return _answer(await self._conversations.delete(request.path_params[_ID], caller), caller)

    async def _list_items(self, request: Request, caller: Caller) -> Response:
        name, query = request.path_params[_ID], request.query_params
        return _answer(await self._conversations.items(name, query, caller), caller)

    async def _add_items(self, request: Request, caller: Caller) -> Response:
        name = request.path_params[_ID]
        with await self._bodies.read(request, caller) as body:
            return _answer(await self._conversations.add_items(name, body, caller), caller)

    async def _get_item(self, request: Request, caller: Caller) -> Response:
        names = request.path_params
        item = await self._conversations.item(names[_ID], names[_ITEM_ID], caller)
        return _answer(item, caller)

    async def _delete_item(self, request: Request, caller: Caller) -> Response:
        names = request.path_params
        left = await self._conversations.delete_item(names[_ID], names[_ITEM_ID], caller)
        return _answer(left, caller)


def _answer(value: object, caller: Caller) -> Response:
    return json_response(encode_json(value), headers=caller.unknown.headers())
