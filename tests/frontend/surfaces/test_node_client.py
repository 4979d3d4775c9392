"""The example in JavaScript, whose connection is cut in the middle of its answer."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.frontend.conftest import Stack

pytestmark = pytest.mark.integration

EXAMPLE = Path(__file__).parents[3] / "examples" / "node"
PIECES = [f"pïece {i} 🦊, " for i in range(40)]
PIECE_S = 0.03


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The example with its package beside it, as a user would install it."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node and npm are not on this machine")
    folder = tmp_path_factory.mktemp("node")
    for name in ("package.json", "chat.js"):
        shutil.copy(EXAMPLE / name, folder)
    done = subprocess.run(
        [npm, "install", "--no-audit", "--no-fund", "--loglevel=error"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"npm cannot install the NATS package: {done.stderr[-300:]}")
    return [node, str(folder / "chat.js")]


class Relay:
    """Stands between a client and the server, and can be cut."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None
        self.port = 0
        self.num_connections = 0

    @contextlib.asynccontextmanager
    async def run(self) -> AsyncIterator[Relay]:
        self._server = await asyncio.start_server(self._join, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            self._server.close()
            self.cut()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, back]
        await asyncio.gather(_pump(reader, back), _pump(there, writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def test_a_chat_goes_on_after_a_reconnect(stack: Stack, program: list[str]) -> None:
    stack.say(*PIECES, delay_s=PIECE_S)
    await stack.start_frontend()
    async with Relay(stack.server.port).run() as relay:
        process = await asyncio.create_subprocess_exec(
            *program,
            f"nats://127.0.0.1:{relay.port}",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        async with asyncio.timeout(60):
            begin = await process.stdout.readexactly(len(PIECES[0].encode()))
            relay.cut()
            rest, errors = await process.communicate()
    assert process.returncode == 0, errors
    assert (begin + rest).decode() == "".join(PIECES) + "\n"
    assert relay.num_connections == 2
    assert errors.count(b"going on with") == 1
    assert len(stack.backend.runs) == 1
