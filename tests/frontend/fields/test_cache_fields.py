"""What bodies and headers say of the prefix cache, and what becomes of it."""

from __future__ import annotations

from typing import Any

import pytest

from frontend.jobs.job import Caller
from shared.protocol.request import KeepPrefix
from tests.frontend.directory import AllRequests, make_directory
from tests.frontend.fields.test_validation import (
    assert_refused,
    chat,
    chat_body,
    completion,
    completion_body,
    requests_of,
)

DAY_S = 86400.0


@pytest.mark.parametrize(
    ("fields", "keep"),
    [
        ({}, None),
        ({"prompt_cache_retention": "in_memory"}, None),
        ({"prompt_cache_retention": "in-memory"}, None),
        ({"prompt_cache_retention": "24h"}, KeepPrefix(DAY_S)),
        ({"keep_prefix": {}}, KeepPrefix(300)),
        ({"keep_prefix": {"tokens": 100, "seconds": 0.5}}, KeepPrefix(0.5, 100)),
        (
            {"keep_prefix": {"seconds": DAY_S}, "prompt_cache_retention": "in_memory"},
            KeepPrefix(DAY_S),
        ),
    ],
)
async def test_what_is_kept(fields: dict[str, Any], keep: KeepPrefix | None) -> None:
    assert (await chat(**fields)).keep == keep
    assert [request.keep for request in await completion(n=2, **fields)] == [keep, keep]
    body = {"text": "Hi", "sampling_params": fields}
    (request,) = requests_of(await AllRequests(make_directory()).generate.job(body, Caller()))
    assert request.keep == keep


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"keep_prefix": {"tokens": 0}}, "keep_prefix.tokens", "invalid_value"),
        ({"keep_prefix": {"seconds": 0}}, "keep_prefix.seconds", "invalid_value"),
        ({"keep_prefix": {"seconds": DAY_S + 1}}, "keep_prefix.seconds", "invalid_value"),
        ({"keep_prefix": 5}, "keep_prefix", "invalid_type"),
        ({"prompt_cache_retention": "1h"}, "prompt_cache_retention", "invalid_value"),
        (
            {"keep_prefix": {}, "prompt_cache_retention": "24h"},
            "prompt_cache_retention",
            "invalid_value",
        ),
        ({"session_id": ""}, "session_id", "invalid_value"),
        ({"prompt_cache_key": "x" * 257}, "prompt_cache_key", "invalid_value"),
    ],
)
async def test_what_is_refused(fields: dict[str, Any], param: str, code: str) -> None:
    await assert_refused("chat", chat_body(**fields), 400, param, code)
    await assert_refused("completions", completion_body(**fields), 400, param, code)


async def test_a_session_by_field_or_header() -> None:
    directory = make_directory()
    for fields, header, session in (
        ({}, "", ""),
        ({}, "h", "h"),
        ({"prompt_cache_key": "k"}, "h", "k"),
        ({"prompt_cache_key": "k", "session_id": "s"}, "h", "s"),
    ):
        job = await AllRequests(directory).chat.job(chat_body(**fields), Caller())
        (request,) = requests_of(job, Caller(session=header))
        assert request.session == session
