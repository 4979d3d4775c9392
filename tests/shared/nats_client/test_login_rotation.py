"""Credentials are replaced while a role runs: it comes back with the new ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import nkeys
import pytest
from nats.aio.client import Client

from shared.config import ClusterConfig
from shared.errors import ConfigError
from shared.nats_client.connection import open_connection, round_trip
from shared.nats_login import NatsLogin
from tests.eventually import Looks, eventually
from tests.nats_jwts import JwtAccount, make_nkey
from tests.nats_server import NatsServer
from tests.time_to_err import time_to_err

pytestmark = pytest.mark.integration


@contextlib.contextmanager
def running(folder: Path, config: str) -> Iterator[NatsServer]:
    server = NatsServer(folder / "nats", config=config)
    server.start()
    try:
        yield server
    finally:
        server.kill()


async def until_back(nc: Client, num_reconnects: int) -> None:
    async for _ in Looks():
        assert not nc.is_closed, "it has given up"
        if nc.stats["reconnects"] >= num_reconnects and nc.is_connected:
            break
    assert await round_trip(nc)


async def refused(nc: Client) -> None:
    """The server has turned it away; it does not give up."""
    await eventually(lambda: not nc.is_connected)
    await time_to_err(0.5)
    assert not nc.is_connected
    assert not nc.is_closed


async def test_a_password(tmp_path: Path) -> None:
    def config(password: str) -> str:
        return f'authorization {{ user: jet, password: "{password}" }}'

    file = tmp_path / "password"
    file.write_text("old")
    with running(tmp_path, config("old")) as server:
        login = ClusterConfig(nats_url=server.url, nats_user="jet", nats_password_file=file)
        async with open_connection(login, "test") as nc:
            server.reload(config("new"))
            await refused(nc)
            file.unlink()  # it is being replaced
            await time_to_err(0.5)
            file.write_text("new\n")
            await until_back(nc, 1)


async def test_an_nkey(tmp_path: Path) -> None:
    def config(public: str) -> str:
        return f"authorization {{ users: [{{ nkey: {public} }}] }}"

    (old, old_pair), (new, new_pair) = (make_nkey(nkeys.PREFIX_BYTE_USER) for _ in range(2))
    file = tmp_path / "user.nk"
    file.write_bytes(bytes(old_pair.seed))
    with running(tmp_path, config(old)) as server:
        login = ClusterConfig(nats_url=server.url, nats_nkey_file=file)
        async with open_connection(login, "test") as nc:
            server.reload(config(new))
            await refused(nc)
            file.write_bytes(bytes(new_pair.seed))
            await until_back(nc, 1)


async def test_a_jwt_that_expires(tmp_path: Path) -> None:
    account = JwtAccount()
    file = tmp_path / "user.creds"
    file.write_text(account.creds(lifetime_s=3))
    with running(tmp_path, account.config) as server:
        login = ClusterConfig(nats_url=server.url, nats_creds=file)
        async with open_connection(login, "test") as nc:
            await refused(nc)
            file.write_text("-----BEGIN NATS USER JWT-----\n")  # half written
            await time_to_err(0.5)
            file.write_text(account.creds())
            await until_back(nc, 1)


def test_files_that_hold_no_credentials(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    for login in (NatsLogin(nkey_file=file), NatsLogin(creds=file)):
        with pytest.raises(ConfigError, match="file"):
            login.check()
