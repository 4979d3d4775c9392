"""Every way to prove who we are, against a real server that insists on it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import nats.errors
import nkeys
import pytest
from nats.aio.msg import Msg

from shared.cluster import open_cluster
from shared.config import ClusterConfig
from shared.errors import ConfigError
from shared.nats_client.connection import open_connection
from tests.nats_jwts import JwtAccount, make_nkey
from tests.nats_server import NatsServer, free_port
from tests.tls_files import make_tls_files

pytestmark = pytest.mark.integration


async def assert_opens(config: ClusterConfig) -> None:
    async with open_cluster(config, "test") as cluster:
        ack = await cluster.js.publish(cluster.subjects.done("0" * 32), b"")
        assert ack.seq == 1


@pytest.fixture
def server(tmp_path: Path) -> Any:
    started: list[NatsServer] = []

    def start(config: str) -> NatsServer:
        server = NatsServer(tmp_path / "nats", config=config)
        server.start()
        started.append(server)
        return server

    yield start
    for one in started:
        one.kill()


async def test_user_and_password(server: Any, tmp_path: Path) -> None:
    url = server('authorization { user: jet, password: "s3cret" }').url
    await assert_opens(ClusterConfig(nats_url=url, nats_user="jet", nats_password="s3cret"))


async def test_a_password_from_a_file(server: Any, tmp_path: Path) -> None:
    url = server('authorization { user: jet, password: "s3cret" }').url
    file = tmp_path / "password"
    file.write_text("s3cret\n")
    await assert_opens(ClusterConfig(nats_url=url, nats_user="jet", nats_password_file=file))


async def test_a_wrong_password_is_refused_at_once_with_a_remedy(server: Any) -> None:
    url = server('authorization { user: jet, password: "s3cret" }').url
    started = time.monotonic()
    with pytest.raises(ConfigError, match="--nats-url and the credentials"):
        await assert_opens(ClusterConfig(nats_url=url, nats_user="jet", nats_password="wrong"))
    assert time.monotonic() - started < 5


async def test_nkey(server: Any, tmp_path: Path) -> None:
    public, pair = make_nkey(nkeys.PREFIX_BYTE_USER)
    url = server(f"authorization {{ users: [ {{ nkey: {public} }} ] }}").url
    seed = tmp_path / "user.nk"
    seed.write_bytes(bytes(pair.seed))
    await assert_opens(ClusterConfig(nats_url=url, nats_nkey_file=seed))


async def test_creds_file(server: Any, tmp_path: Path) -> None:
    account = JwtAccount()
    creds = tmp_path / "user.creds"
    creds.write_text(account.creds())
    await assert_opens(ClusterConfig(nats_url=server(account.config).url, nats_creds=creds))


async def test_tls_with_a_client_certificate(server: Any, tmp_path: Path) -> None:
    make_tls_files(tmp_path)
    url = server(
        f'tls {{ cert_file: "{tmp_path}/server.pem", key_file: "{tmp_path}/server.key", '
        f'ca_file: "{tmp_path}/ca.pem", verify: true }}'
    ).url.replace("nats://", "tls://")
    config = ClusterConfig(nats_url=url, nats_tls_ca=tmp_path / "ca.pem")
    with pytest.raises(ConfigError):
        await assert_opens(config)
    await assert_opens(
        ClusterConfig(
            nats_url=url,
            nats_tls_ca=tmp_path / "ca.pem",
            nats_tls_cert=tmp_path / "client.pem",
            nats_tls_key=tmp_path / "client.key",
        )
    )


async def test_a_missing_secret_file_is_named(tmp_path: Path) -> None:
    config = ClusterConfig(nats_user="a", nats_password_file=tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="nowhere"):
        await assert_opens(config)


async def test_no_server_at_all_says_what_to_check() -> None:
    url = f"nats://127.0.0.1:{free_port()}"
    config = ClusterConfig(nats_url=url, nats_connect_timeout_s=0.5)
    with pytest.raises(ConfigError, match=f"cannot connect to NATS at {url}"):
        await assert_opens(config)


async def test_a_server_that_is_silent_is_waited_for(server: Any) -> None:
    """The library gives up a connection on which nothing comes after two seconds."""
    silent = server("")
    silent.pause()
    config = ClusterConfig(nats_url=silent.url, nats_connect_timeout_s=0.1)
    with pytest.raises(ConfigError, match=r"cannot connect to NATS at .*: TimeoutError; check"):
        async with open_connection(config, "test"):
            pass
    asyncio.get_running_loop().call_later(2.5, silent.resume)
    async with open_cluster(ClusterConfig(nats_url=silent.url), "test"):
        pass


async def test_a_server_that_takes_only_small_messages_is_refused(tmp_path: Path) -> None:
    server = NatsServer(tmp_path, config="max_payload: 65536")
    server.start()
    try:
        with pytest.raises(ConfigError, match=r"has max_payload 65536 .* needs 1048576"):
            async with open_cluster(ClusterConfig(nats_url=server.url), "role"):
                pass
    finally:
        server.kill()


async def test_headers_that_make_a_message_too_large_do_not_cost_the_connection(
    server: Any,
) -> None:
    config = ClusterConfig(nats_url=server("").url)
    async with open_connection(config, "role") as nc:
        payload, headers = bytes(nc.max_payload - 60), {"Key": "v" * 41}
        arrived: asyncio.Queue[Msg] = asyncio.Queue()
        await nc.subscribe("x", cb=arrived.put)
        with pytest.raises(nats.errors.MaxPayloadError):
            await nc.publish("x", payload, headers=headers | {"Key": "v" * 42})
        await nc.publish("x", payload, headers=headers)  # not a byte more
        message = await asyncio.wait_for(arrived.get(), 10)
        assert (len(message.data), message.headers) == (len(payload), headers)
        assert nc.stats["reconnects"] == 0
