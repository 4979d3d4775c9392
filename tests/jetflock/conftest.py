"""One stack for all tests of commands that only look at it, or bring their own frontend."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.e2e.role_stack import SCRIPTED, RoleStack


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RoleStack]:
    """A frontend, a detokenizer and a worker without a model. Kill none of them."""
    async with RoleStack(tmp_path_factory.mktemp("stack")) as running:
        running.start_worker(*SCRIPTED)
        await running.wait_ready(1)
        yield running
