"""What pages of other sites can do to a server that asks for no key: nothing."""

from __future__ import annotations

import pytest

from tests.frontend.conftest import Stack
from tests.frontend.http.test_http import assert_error
from tests.frontend.inference.test_accept import BODY, CHAT

pytestmark = pytest.mark.integration

FORM = "application/x-www-form-urlencoded"
JSON = "application/json"


POSTS: list[tuple[dict[str, str], int]] = [
    # Programs: curl -d says that it sends a form.
    ({"content-type": FORM}, 200),
    ({"content-type": "text/plain"}, 200),
    ({}, 200),
    # Our own page, also behind a proxy that changes Host.
    ({"origin": "http://localhost:8000", "host": "localhost:8000", "content-type": JSON}, 200),
    ({"origin": "https://a.example", "sec-fetch-site": "same-origin"}, 200),
    ({"origin": "https://friend.example", "content-type": JSON}, 200),
    # Pages of others.
    ({"origin": "https://evil.example", "content-type": JSON}, 403),
    ({"origin": "https://evil.example", "content-type": "text/plain"}, 403),
    ({"origin": "null", "content-type": FORM}, 403),
    ({"origin": "http://localhost:3000", "host": "localhost:8000"}, 403),
    ({"sec-fetch-site": "cross-site", "content-type": "text/plain"}, 403),
    ({"sec-fetch-site": "same-site"}, 403),
    ({"origin": "http://evil.example:8000", "host": "evil.example:8000"}, 403),
    ({"host": "evil.example"}, 403),
    # A form, wherever it stands.
    ({"sec-fetch-site": "same-origin", "content-type": "text/plain; charset=UTF-8"}, 415),
    ({"origin": "https://friend.example", "content-type": FORM}, 415),
]  # fmt: skip


async def test_a_post(stack: Stack) -> None:
    running = await stack.start_frontend(cors_origins=("https://friend.example",))
    num_runs = 0
    async with running.client() as client:
        for headers, status in POSTS:
            request = client.build_request("POST", CHAT, json=BODY)
            del request.headers["content-type"]
            request.headers.update(headers)
            answer = await client.send(request)
            assert answer.status_code == status, headers
            num_runs += status == 200
            if status != 200:
                code = answer.json()["error"]["code"]
                assert code in ("foreign_origin", "foreign_host", "unsupported_content_type")
            assert len(stack.backend.runs) == num_runs, headers


async def test_a_link_of_another_site_leads_to_the_page(stack: Stack) -> None:
    running = await stack.start_frontend()
    async with running.client() as client:
        assert (await client.get("/", headers={"sec-fetch-site": "cross-site"})).status_code == 200
        refused = await client.get("/v1/models", headers={"host": "evil.example"})
        assert_error(refused, 403, "foreign_host")
        refused = await client.options(CHAT, headers={"origin": "https://evil.example"})
        assert refused.status_code == 403


async def test_names_that_an_operator_allows(stack: Stack) -> None:
    running = await stack.start_frontend(allowed_hosts=("chat.example.com",))
    async with running.client(headers={"host": "chat.example.com"}) as client:
        own = {"origin": "https://chat.example.com"}
        assert (await client.post(CHAT, json=BODY, headers=own)).status_code == 200


async def test_a_key_is_proof_enough(stack: Stack) -> None:
    """No page of another site has it, and browsers send none by themselves."""
    running = await stack.start_frontend(api_key=("k",))
    async with running.client(headers={"host": "chat.example.com"}) as client:
        foreign = {"origin": "https://evil.example", "content-type": "text/plain"}
        assert_error(await client.post(CHAT, json=BODY, headers=foreign), 401, "invalid_api_key")
        known = foreign | {"authorization": "Bearer k"}
        assert (await client.post(CHAT, json=BODY, headers=known)).status_code == 200
