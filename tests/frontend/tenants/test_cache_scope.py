"""Who shares cached prefixes: keys of a tenant, and those whom an operator lets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from deploy.nats.permissions import ADMIN, FRONTEND, permissions
from frontend.tenants.cache_scope import KEY, CacheScope
from frontend.tenants.tenant import Tenant
from shared.subjects import Subjects
from tests.frontend.conftest import RunningFrontend, Stack

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
TENANTS: list[dict[str, Any]] = [
    {"id": "alice", "keys": [{"key": "a1"}, {"key": "a2"}]},
    {"id": "bob", "keys": [{"key": "b"}]},
    {"id": "carol", "keys": [{"key": "c"}], "cache_group": "team"},
    {"id": "dave", "keys": [{"key": "d"}], "cache_group": "team"},
    {"id": "team", "keys": [{"key": "t"}]},
]

pytestmark = pytest.mark.integration


async def salt(stack: Stack, running: RunningFrontend, key: str, **fields: str) -> str:
    """What the worker is told."""
    headers = {"Authorization": f"Bearer {key}"}
    async with running.client(headers=headers) as client:
        answer = await client.post("/v1/chat/completions", json={**BODY, **fields})
    assert answer.status_code == 200, answer.text
    return stack.backend.runs[answer.headers["x-request-id"]].request.cache_salt


def write_keys(folder: Path) -> Path:
    path = folder / "keys.json"
    path.write_text(json.dumps({"tenants": TENANTS}))
    return path


async def test_tenants_share_nothing_but_by_group(stack: Stack, tmp_path: Path) -> None:
    path = write_keys(tmp_path)
    one, other = [await stack.start_frontend(api_keys_file=path) for _ in range(2)]
    salts = {tenant: await salt(stack, one, tenant) for tenant in ("a1", "b", "c", "t")}
    assert len(set(salts.values())) == 4
    assert "" not in salts.values()
    assert await salt(stack, other, "a2") == salts["a1"], "another key, another frontend"
    assert await salt(stack, other, "d") == salts["c"]
    own = await salt(stack, one, "a1", cache_salt="x")
    assert own == await salt(stack, other, "a2", cache_salt="x")
    assert len({own, salts["a1"], await salt(stack, one, "b", cache_salt="x")}) == 3


@pytest.mark.parametrize("models", ["tiny", "*", "other"])
async def test_a_model_is_shared_by_all_tenants(stack: Stack, tmp_path: Path, models: str) -> None:
    running = await stack.start_frontend(
        api_keys_file=write_keys(tmp_path), shared_prefix_models=(models,)
    )
    shared = await salt(stack, running, "a1") == await salt(stack, running, "b")
    assert shared == (models != "other")
    salted = [await salt(stack, running, key, cache_salt="x") for key in ("a1", "b")]
    assert (salted[0] == salted[1]) == shared
    assert salted[0] != await salt(stack, running, "a1")


async def test_the_secret_is_made_once_and_followed(stack: Stack) -> None:
    bucket = stack.cluster.bucket(stack.cluster.subjects.secrets_bucket)
    first, second = CacheScope(bucket, ()), CacheScope(bucket, ())
    await first.start()
    await second.start()
    alice = Tenant("alice")
    before = first.salt(alice, "m", "")
    assert second.salt(alice, "m", "") == before
    assert first.salt(Tenant(), "m", "") not in ("", before)
    entry = await bucket.get(KEY)
    assert entry is not None
    assert len(entry.value) == 32
    await bucket.delete(KEY)  # as an operator does who wants another
    await first._look()
    await second._look()
    after = first.salt(alice, "m", "")
    assert after == second.salt(alice, "m", "") != before
    await stack.cluster.nc.request(  # as `nats kv del` does
        f"$KV.{stack.cluster.subjects.secrets_bucket}.{KEY}", headers={"KV-Operation": "DEL"}
    )
    await first._look()
    await second._look()
    assert first.salt(alice, "m", "") == second.salt(alice, "m", "") not in (before, after)


def subjects_of(rights: Mapping[str, Any], user: str) -> str:
    return " ".join((*rights[user].publish, *rights[user].subscribe))


def test_frontends_alone_may_read_the_secret() -> None:
    subjects = Subjects()
    rights = permissions(subjects, "jetflock")
    for user in rights.keys() - {ADMIN, FRONTEND}:
        assert subjects.secrets_bucket not in subjects_of(rights, user), user
        assert not any(
            right in subjects_of(rights, user).split() for right in ("$KV.>", ">", "$KV.*.*")
        ), user
    assert f"STREAM.MSG.GET.KV_{subjects.secrets_bucket}" in subjects_of(rights, FRONTEND)
