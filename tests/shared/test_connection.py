"""Every way to prove who we are, against a real server that insists on it."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from pathlib import Path
from typing import Any

import nkeys
import pytest
from nacl.signing import SigningKey

from shared.cluster import open_cluster
from shared.config import ClusterConfig
from shared.errors import ConfigError
from tests.nats_server import NatsServer, free_port
from tests.tls_files import make_tls_files

pytestmark = pytest.mark.integration


def make_nkey(prefix: int) -> tuple[str, nkeys.KeyPair]:
    """Public key and pair of a new identity (prefix: nkeys.PREFIX_BYTE_...)."""
    seed = nkeys.encode_seed(bytes(SigningKey.generate()), prefix)
    pair = nkeys.from_seed(bytearray(seed))
    return pair.public_key.decode(), pair


def make_jwt(subject: str, issuer: str, signer: nkeys.KeyPair, name: str, nats: Any) -> str:
    """A NATS JWT: its claims signed with the issuer's nkey."""

    def encode(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    claims = {
        "jti": hashlib.sha256(name.encode()).hexdigest(),
        "iat": int(time.time()),
        "iss": issuer,
        "name": name,
        "sub": subject,
        "nats": nats | {"version": 2},
    }
    head = encode(json.dumps({"typ": "JWT", "alg": "ed25519-nkey"}).encode())
    body = encode(json.dumps(claims).encode())
    return f"{head}.{body}.{encode(signer.sign(f'{head}.{body}'.encode()))}"


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
    operator, operator_pair = make_nkey(nkeys.PREFIX_BYTE_OPERATOR)
    account, account_pair = make_nkey(nkeys.PREFIX_BYTE_ACCOUNT)
    system, _ = make_nkey(nkeys.PREFIX_BYTE_ACCOUNT)
    user, user_pair = make_nkey(nkeys.PREFIX_BYTE_USER)
    unlimited = dict.fromkeys(
        ("subs", "data", "payload", "imports", "exports", "conn", "leaf", "mem_storage",
         "disk_storage", "streams", "consumer"), -1,
    ) | {"wildcards": True}  # fmt: skip
    operator_jwt = make_jwt(
        operator, operator, operator_pair, "op", {"type": "operator", "system_account": system}
    )
    account_jwt = make_jwt(
        account, operator, operator_pair, "acc", {"type": "account", "limits": unlimited}
    )
    no_jetstream = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn"), -1)
    system_jwt = make_jwt(
        system, operator, operator_pair, "sys", {"type": "account", "limits": no_jetstream}
    )
    user_jwt = make_jwt(
        user, account, account_pair, "user",
        {"type": "user", "subs": -1, "data": -1, "payload": -1},
    )  # fmt: skip
    url = server(
        f"operator: {operator_jwt}\nsystem_account: {system}\nresolver: MEMORY\n"
        f"resolver_preload: {{ {account}: {account_jwt}, {system}: {system_jwt} }}"
    ).url
    creds = tmp_path / "user.creds"
    seed = bytes(user_pair.seed).decode()
    creds.write_text(
        f"-----BEGIN NATS USER JWT-----\n{user_jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
    await assert_opens(ClusterConfig(nats_url=url, nats_creds=creds))


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
