"""No field that a peer knows is dropped in silence, and of others the client is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from frontend.fields.peer_fields import PEER_FIELDS, Touches
from frontend.fields.request_body import BodyReader
from frontend.fields.unknown_fields import MAX_TOLD, UnknownFields, nearest
from frontend.openapi.bodies import body_schemas
from frontend.openapi.body_routes import MESSAGES, ROUTES, TOKEN_ROUTES
from frontend.surfaces.anthropic.body import REFUSED as OF_MESSAGES
from frontend.surfaces.chat.chat_request import ChatBody
from shared.errors import UnknownField
from tests.frontend.conftest import Stack

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
SCHEMAS = body_schemas()
ODD = {"mood": "good", "temprature": 2}


@pytest.mark.parametrize("route", [*ROUTES, MESSAGES, *TOKEN_ROUTES], ids=lambda route: route.name)
def test_every_route_knows_every_field_of_a_peer(route: Any) -> None:
    taken = SCHEMAS[route.schema]["properties"].keys() | route.refused.keys()
    assert {field.name for field in PEER_FIELDS} - taken - route.ignored == set()


def test_each_field_stands_there_once() -> None:
    assert len({field.name for field in PEER_FIELDS}) == len(PEER_FIELDS)


@pytest.mark.parametrize("field", PEER_FIELDS, ids=lambda field: field.name)
def test_what_asks_for_nothing_is_fine(field: Any) -> None:
    assert not any(field.asks(value) for value in field.fine)
    if field.touches is not Touches.NOTHING:
        assert field.asks("asks")
        assert field.asks(["asks"])


def test_messages_refuse_the_samplers_that_they_have_no_field_for() -> None:
    assert {"min_p", "seed", "logit_bias", "response_format", "n"} <= OF_MESSAGES.keys()


def test_the_nearest_name_is_told() -> None:
    known = ChatBody.__struct_fields__
    assert nearest("temprature", known) == "temperature"
    assert nearest("max_token", known) == "max_tokens"
    assert nearest("q" * 10_000, known) is None


def test_names_are_told_in_ascii_and_not_all_of_many() -> None:
    unknown = UnknownFields()
    reader = BodyReader(ChatBody, {})
    reader.check({"größe\r\nx: y": 1, **{f"f{i}": i for i in range(MAX_TOLD)}}, unknown)
    (told,) = unknown.headers().values()
    assert told.isascii()
    assert "\n" not in told
    assert told.endswith(", ...")
    assert told.count(",") == MAX_TOLD


def test_where_they_are_refused_the_first_of_them_is() -> None:
    unknown = UnknownFields(are_refused=True)
    with pytest.raises(UnknownField, match=r"'temprature' is no field .* mean 'temperature'"):
        BodyReader(ChatBody, {}).check({"temprature": 1}, unknown)


@pytest.mark.integration
async def test_over_http_and_nats(stack: Stack) -> None:
    telling = await stack.start_frontend()
    async with telling.client() as client:
        for path, body in (
            (CHAT, BODY),
            (CHAT, {**BODY, "stream": True}),
            ("/v1/messages", {**BODY, "max_tokens": 5}),
            ("/tokenize", {"prompt": "x"}),
            ("/v1/messages/count_tokens", BODY),
            ("/v1/responses/input_tokens", {"model": "tiny", "input": "Hi"}),
        ):
            answer = await client.post(path, json={**body, **ODD})
            assert (answer.status_code, answer.headers["x-unknown-fields"]) == (
                200,
                "mood, temprature",
            ), path
        plain = await client.post(CHAT, json={**BODY, "mirostat": 0, "tfs_z": 1.0, "n_probs": None})
        assert plain.status_code == 200
        assert "x-unknown-fields" not in plain.headers
        for name, value in (("mirostat", 2), ("kv_transfer_params", {"a": 1}), ("n_probs", 3)):
            refused = await client.post(CHAT, json={**BODY, name: value})
            error = refused.json()["error"]
            assert (refused.status_code, error["param"]) == (400, name)
            assert error["code"] == "unsupported_parameter"
    for subject, body in (("chat.completions", BODY), ("tokenize", {"prompt": "x"})):
        data = json.dumps({**body, **ODD}).encode()
        message = await stack.caller.request(f"jetflock.{subject}", data, 10)
        assert message.headers is not None
        assert message.headers["x-unknown-fields"] == "mood, temprature"


@pytest.mark.integration
async def test_they_are_refused_where_the_operator_wants_it(stack: Stack) -> None:
    strict = await stack.start_frontend(unknown_fields="refuse")
    async with strict.client() as client:
        answer = await client.post(CHAT, json={**BODY, "temprature": 1})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "unknown_field")
        assert "did you mean 'temperature'" in error["message"]
        assert (await client.post(CHAT, json={**BODY, "mirostat_tau": 5.0})).status_code == 200
