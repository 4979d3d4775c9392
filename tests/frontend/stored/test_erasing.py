"""Requests are erased by who made them, over HTTP and NATS; a tenant's cached prefixes with it."""

from __future__ import annotations

import pytest

from frontend.stored.erasing.tenant_eraser import TenantEraser
from frontend.tenants.cache_scope import CacheScope
from frontend.tenants.tenant import Tenant
from shared.errors import ConfigError
from tests.frontend.conftest import Stack

pytestmark = pytest.mark.integration


async def test_a_kept_response_is_erased(stack: Stack) -> None:
    running = await stack.start_frontend()
    async with running.client() as client:
        kept = await client.post("/v1/responses", json={"model": "tiny", "input": "Hi"})
        path = f"/v1/responses/{kept.json()['id']}"
        assert (await client.get(path)).status_code == 200
        erased = await client.delete(f"/v1/streams/{kept.headers['x-request-id']}")
        assert erased.status_code == 200, erased.text
        assert (await client.get(path)).status_code == 404


@pytest.mark.parametrize("rid", ["x", "f" * 32, "jf.own.0.*", "%3E"])
async def test_what_is_no_request_is_404(stack: Stack, rid: str) -> None:
    running = await stack.start_frontend()
    async with running.client() as client:
        answer = await client.delete(f"/v1/streams/{rid}")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "stream_not_found"


async def test_an_erased_tenant_has_another_salt_and_others_keep_theirs(stack: Stack) -> None:
    secrets = stack.cluster.bucket(stack.cluster.subjects.secrets_bucket)
    before, after = CacheScope(secrets, ()), CacheScope(secrets, ())
    await before.start()
    eraser = TenantEraser(stack.cluster, "test")
    salts = set()
    for _ in range(2):
        erasure = await eraser.erase("alice")
        assert (erasure.num_requests, erasure.gone_by) == (0, None)
        await after._look()
        salts.add(after.salt(Tenant("alice"), "m", ""))
    assert len(salts) == 2
    assert before.salt(Tenant("alice"), "m", "") not in salts
    assert before.salt(Tenant("bob"), "m", "") == after.salt(Tenant("bob"), "m", "")


async def test_everybody_is_no_tenant(stack: Stack) -> None:
    with pytest.raises(ConfigError, match="''"):
        await TenantEraser(stack.cluster, "test").erase("")
