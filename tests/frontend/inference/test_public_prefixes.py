"""Declared prefixes: requests tell how much of their prompt is one, and of whom nothing is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from frontend.tenants.public_prefix_file import read_prefix_file
from shared.errors import ConfigError
from shared.protocol.codec import decode, encode
from shared.protocol.request import GenerateRequest
from shared.protocol.token_ids import unpack_token_ids
from tests.deploy.local_stack import REPOSITORY
from tests.frontend.conftest import RunningFrontend, Stack
from tests.frontend.tiny_model import CHATML, make_tokenizer

SYSTEM = {"role": "system", "content": "You are a patient librarian. " * 4}
TEXT = "Once upon a time there was a fox. "
# The model has a token for each byte, and one for each mark.
NUM_TEXT = 1 + len(TEXT)
NUM_SYSTEM = len(f"system\n{SYSTEM['content']}\nuser\n") + 3
assert "<|im_start|>" in CHATML

DECLARED: dict[str, Any] = {
    "prefixes": [
        {"model": "tiny", "messages": [SYSTEM]},
        {"model": "tiny", "text": TEXT},
        {"model": "tiny", "text": TEXT * 2},
        {"model": "tiny", "messages": [{"role": "nobody", "content": "of that role"}]},
        {"model": "other", "text": "Hello"},
    ]
}
TENANTS = [{"id": name, "keys": [{"key": name}]} for name in ("alice", "bob")]


@pytest.fixture
async def running(stack: Stack, tmp_path: Path) -> RunningFrontend:
    (tmp_path / "keys.json").write_text(json.dumps({"tenants": TENANTS}))
    (tmp_path / "prefixes.json").write_text(json.dumps(DECLARED))
    return await stack.start_frontend(
        api_keys_file=tmp_path / "keys.json", shared_prefixes=tmp_path / "prefixes.json"
    )


async def asked(
    stack: Stack, running: RunningFrontend, path: str, key: str = "alice", **body: Any
) -> GenerateRequest:
    """What the worker is told."""
    async with running.client(headers={"Authorization": f"Bearer {key}"}) as client:
        answer = await client.post(f"/v1/{path}", json={"model": "tiny", **body})
    assert answer.status_code == 200, answer.text
    return stack.backend.runs[answer.headers["x-request-id"]].request


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


@pytest.mark.integration
async def test_chats_that_begin_with_declared_messages(
    stack: Stack, running: RunningFrontend
) -> None:
    for key, question in (("alice", "Where is it?"), ("bob", "\n why")):
        request = await asked(
            stack, running, "chat/completions", key, messages=[SYSTEM, user(question)]
        )
        assert request.num_public_tokens == NUM_SYSTEM
        rest = unpack_token_ids(request.prompt_ids)[NUM_SYSTEM:]
        assert make_tokenizer().decode(list(rest)).startswith(question), "it is the tenant's own"
    other = SYSTEM | {"content": SYSTEM["content"] + "x"}
    for messages in ([user("Hi")], [other, user("Hi")], [SYSTEM], [user("Hi"), SYSTEM]):
        request = await asked(stack, running, "chat/completions", messages=messages)
        assert request.num_public_tokens == 0


@pytest.mark.integration
async def test_texts_share_the_longest_declared_one(stack: Stack, running: RunningFrontend) -> None:
    for prompt, num in (
        (TEXT + "It slept.", NUM_TEXT),
        (TEXT, NUM_TEXT),
        (TEXT[:-1], 0),
        ("x" + TEXT, 0),
        (TEXT * 2 + "x", NUM_TEXT + len(TEXT)),
        (TEXT * 3, NUM_TEXT + len(TEXT)),
    ):
        request = await asked(stack, running, "completions", prompt=prompt)
        assert request.num_public_tokens == num, prompt


@pytest.mark.integration
async def test_who_salts_shares_nothing(stack: Stack, running: RunningFrontend) -> None:
    request = await asked(stack, running, "completions", prompt=TEXT, cache_salt="mine")
    assert request.num_public_tokens == 0


@pytest.mark.integration
async def test_each_prompt_of_a_body_is_looked_at(stack: Stack, running: RunningFrontend) -> None:
    await asked(stack, running, "completions", prompt=[TEXT, "x", TEXT], n=2)
    runs = sorted(stack.backend.runs.values(), key=lambda run: run.reply.choice_idx)
    found = [run.request.num_public_tokens for run in runs]
    assert found == [NUM_TEXT, NUM_TEXT, 0, 0, NUM_TEXT, NUM_TEXT]


class OlderRequest(msgspec.Struct, frozen=True):
    """As a worker reads it who does not know the field: by the salt alone."""

    cache_salt: str


@pytest.mark.integration
async def test_an_older_worker_is_told_the_salt_of_the_tenant(
    stack: Stack, running: RunningFrontend
) -> None:
    salts = set()
    for key in ("alice", "bob"):
        request = await asked(stack, running, "completions", key, prompt=TEXT)
        assert request.num_public_tokens
        salts.add(decode(OlderRequest, encode(request)).cache_salt)
    assert len(salts) == 2


def test_the_file_that_the_docs_show(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs/operating.md").read_text().split("### Shared prefixes", 1)[1]
    path = tmp_path / "prefixes.yaml"
    path.write_text(page.split("```yaml", 1)[1].split("```", 1)[0])
    chat, text = read_prefix_file(path)
    assert chat.chat is not None
    assert chat.chat["messages"][0]["role"] == "system"
    assert (text.model, text.text) == ("llama", "Once upon a time")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "must hold a mapping with the list 'prefixes'"),
        ("[]", "must hold a mapping with the list 'prefixes'"),
        ("prefixes: []", "declares no prefix"),
        ("prefix: []", "1: unknown field 'prefix'"),
        ("prefixes:\n- model: m", "2: the entry of 'm' needs 'text' or 'messages'"),
        ("prefixes:\n- text: t", "2: entry: Object missing required field `model`"),
        ("prefixes:\n- {model: m, text: ''}", "2: text (''): Expected `str` of length >= 1"),
        ("prefixes:\n- {model: m, text: t, tools: []}", "2: field 'tools' goes with 'messages'"),
        ("prefixes:\n- {model: m, texts: t}", "2: unknown field 'texts'"),
        (
            "prefixes:\n- model: m\n  messages: [{role: user, content: [{type: image_url}]}]",
            "3: messages",
        ),
        ("prefixes:\n- {model: m, text: t, messages: [{role: user, content: x}]}", "needs 'text'"),
    ],
)
def test_a_file_that_is_wrong(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "prefixes.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        read_prefix_file(path)
    assert error in str(raised.value)
    assert str(path) in str(raised.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the shared prefixes"):
        read_prefix_file(tmp_path / "none.yaml")
