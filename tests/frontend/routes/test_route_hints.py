"""Paths of other servers: served, or answered with what there is in their place."""

from __future__ import annotations

import pytest

from frontend.routes.route_hints import hint
from tests.frontend.conftest import Stack

SERVED = ("/v1/completions", "/v1/models", "/generate")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/v1/completions/", "There is /v1/completions."),
        ("/v1/v1/completions", "There is /v1/completions."),
        ("/models", "There is /v1/models."),
        ("/v1/generate", "There is /generate."),
        ("/V1/Models", "There is /v1/models."),
        ("/completion", "/v1/completions"),
        ("/completion/", "/v1/completions"),
        ("/slots", "GET /cluster"),
        ("/flush_cache", "--admin-port"),
        ("/api/blobs/sha256:0", "jetflock worker"),
    ],
)
def test_a_neighbour_is_named(path: str, words: str) -> None:
    assert words in hint(path, SERVED)


def test_nothing_is_made_up() -> None:
    assert hint("/wp-login.php", SERVED) == hint("/", SERVED) == hint("", SERVED) == ""


@pytest.mark.integration
async def test_paths_of_other_servers(stack: Stack) -> None:
    running = await stack.start_frontend()
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
    async with running.client() as http:
        for path in ("/chat/completions", "/v1/chat/completions"):
            answer = (await http.post(path, json=chat)).json()
            assert answer["choices"][0]["message"]["content"] == "Hello, world!"
        assert (await http.get("/models")).json() == (await http.get("/v1/models")).json()
        assert (await http.get("/ping")).status_code == (await http.get("/ready")).status_code
        missing = await http.post("/completion", json={})
        assert missing.status_code == 404
        assert "POST /v1/completions" in missing.json()["error"]["message"]
        missing = await http.post("/api/pull", json={"model": "tiny"})
        assert missing.status_code == 404
        assert "jetflock worker" in missing.json()["error"]
        wrong = await http.get("/api/chat")
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
