"""A real worker: `cached_tokens` tells a tenant nothing of what another one has asked."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from tests.deploy.local_stack import REAL_ROLES, LocalStack

pytestmark = pytest.mark.e2e

SECRET = "The account number is 4711 0815, and the password is swordfish. " * 8
DECLARED = "Once upon a time there was a fox who lived in a wood behind the hill. " * 4
TENANTS = [
    {"id": "alice", "keys": [{"key": "a1"}, {"key": "a2"}]},
    {"id": "mallory", "keys": [{"key": "m"}]},
]


def cached_tokens(client: httpx.Client, key: str, prompt: str) -> int:
    answer = client.post(
        "/v1/completions",
        json={"model": "jetflock-demo", "prompt": prompt, "max_tokens": 2},
        headers={"Authorization": f"Bearer {key}"},
    )
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_a_right_guess_looks_like_a_wrong_one(tmp_path: Path) -> None:
    keys, prefixes = tmp_path / "keys.json", tmp_path / "prefixes.json"
    keys.write_text(json.dumps({"tenants": TENANTS}))
    entry = {"model": "jetflock-demo", "text": DECLARED}
    prefixes.write_text(json.dumps({"prefixes": [entry]}))
    flags = ("--api-keys-file", str(keys), "--shared-prefixes", str(prefixes))
    stack = LocalStack(tmp_path, *flags, program=REAL_ROLES)
    try:
        stack.start().wait_ready()
        check_counts(stack)
    finally:
        stack.kill()


def check_counts(stack: LocalStack) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{stack.port}", timeout=60) as client:
        assert cached_tokens(client, "a1", SECRET) == 0
        assert cached_tokens(client, "m", SECRET) == 0
        assert cached_tokens(client, "m", "Another guess entirely. " * 20) == 0
        own = cached_tokens(client, "a2", SECRET)
        assert own > 50, "keys of a tenant share its cache"

        # Behind a declared text a right guess looks like a wrong one, too.
        assert cached_tokens(client, "a1", DECLARED + SECRET) == 0
        public = cached_tokens(client, "m", DECLARED + SECRET)
        assert public == cached_tokens(client, "m", DECLARED + "Another guess entirely. " * 20)
        assert public == cached_tokens(client, "m", DECLARED + "Another one. " * 20) > 30
        assert cached_tokens(client, "a2", DECLARED + SECRET) > public + 50
        assert cached_tokens(client, "m", DECLARED[: len(DECLARED) // 2] + SECRET) == 0
