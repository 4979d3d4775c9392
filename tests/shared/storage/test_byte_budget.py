"""What a deployment may store is known before it is set up, and told where it has no room."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from shared.broker.jetstream import JetStream
from shared.cluster import open_cluster
from shared.config import ClusterConfig
from shared.errors import BrokerError, ConfigError
from shared.nats_client.connection import open_connection
from shared.storage.byte_budget import ByteBudget, check_account, room_error
from shared.storage.streams import stream_configs
from shared.subjects import Subjects
from tests.nats_server import NatsServer

MIB, GIB = 1 << 20, 1 << 30
SMALL = ClusterConfig(
    queue_max_bytes=8 * MIB,
    log_max_bytes=32 * MIB,
    results_max_bytes=4 * MIB,
    files_max_bytes=4 * MIB,
    response_store_bytes=4 * MIB,
    dead_max_bytes=1 * MIB,
    objects_max_bytes=1 * MIB,
    keys_max_bytes=1 * MIB,
)

FITTING = dataclasses.replace(
    SMALL,
    log_max_bytes=4 * MIB,
    results_max_bytes=MIB,
    files_max_bytes=MIB,
    response_store_bytes=MIB,
    keys_max_bytes=MIB // 4,
)


def missing(config: ClusterConfig) -> list[dict[str, Any]]:
    return stream_configs(config, Subjects())


def account(max_storage: int, reserved: int = 0) -> dict[str, Any]:
    return {"limits": {"max_storage": max_storage}, "reserved_storage": reserved}


@pytest.mark.parametrize("config", [ClusterConfig(), SMALL])
def test_it_is_the_sum_of_what_the_streams_are_made_with(config: ClusterConfig) -> None:
    budget = ByteBudget.of(config)
    assert budget.reserved == sum(stream.get("max_bytes", 0) for stream in missing(config))
    assert budget.total == budget.reserved + GIB // 4


def test_all_settings_are_named_with_their_numbers() -> None:
    told = str(ByteBudget.of(ClusterConfig()))
    assert told == (
        "15.38 GiB (--queue-max-bytes 1 GiB, --log-max-bytes 8 GiB, --results-max-bytes 1 GiB, "
        "2 x --files-max-bytes 1 GiB, --response-store-bytes 1 GiB, --dead-max-bytes 128 MiB, "
        "--objects-max-bytes 1 GiB, 4 x --keys-max-bytes 256 MiB, 256 MiB for what has no limit)"
    )


@pytest.mark.parametrize("replicas", [1, 3])
def test_the_limit_of_an_account_is_of_all_copies(replicas: int) -> None:
    config = dataclasses.replace(SMALL, replicas=replicas)
    wanted = replicas * ByteBudget.of(config).reserved
    check_account(config, missing(config), account(-1))
    check_account(config, missing(config), account(wanted))
    check_account(config, missing(config), account(wanted + 7, reserved=7))
    check_account(config, [], account(wanted, reserved=wanted))
    with pytest.raises(ConfigError, match=rf"prefix 'jf' .* want .* {replicas} copies"):
        check_account(config, missing(config), account(wanted + 6, reserved=7))


def test_the_limit_of_a_tier_is_of_one_copy() -> None:
    config = dataclasses.replace(SMALL, replicas=3)
    wanted = ByteBudget.of(config).reserved
    check_account(config, missing(config), account(0) | {"tiers": {"R3": account(wanted)}})
    with pytest.raises(ConfigError, match="max_file"):
        check_account(config, missing(config), account(0) | {"tiers": {"R3": account(wanted - 1)}})


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("insufficient storage resources available", 10047),
        ("no suitable peers for placement, insufficient storage", 10005),
        ("stream max bytes exceeds account limit max stream bytes", 10122),
    ],
)
def test_what_the_server_refuses_for_want_of_room_names_the_stream(text: str, code: int) -> None:
    stream = {"name": "jf_TOKENS", "max_bytes": 32 * MIB}
    error = room_error(SMALL, stream, BrokerError(text, code))
    assert error is not None
    for part in ("jf_TOKENS of 32 MiB", text, "max_file_store", "--log-max-bytes 32 MiB"):
        assert part in str(error)
    assert room_error(SMALL, stream, BrokerError("stream name in use", 10058)) is None


@pytest.mark.integration
async def test_an_account_without_room_is_left_as_it_is(tmp_path: Path) -> None:
    user = 'users: [{user: "a", password: "a"}]'
    config = f"accounts {{ A {{ jetstream {{ max_file: {40 * MIB} }}, {user} }} }}"
    server = NatsServer(tmp_path, config=config)
    server.start()
    cluster = dataclasses.replace(SMALL, nats_url=server.url, nats_user="a", nats_password="a")
    try:
        with pytest.raises(ConfigError, match=r"account has 40 MiB, of which 0 MiB .* 62 MiB"):
            async with open_cluster(cluster, "test"):
                pass
        async with open_connection(cluster, "test") as nc:
            assert (await JetStream(nc).api("INFO"))["streams"] == 0
        fitting = dataclasses.replace(cluster, log_max_bytes=8 * MIB)
        async with open_cluster(fitting, "test"):
            pass
        async with open_cluster(cluster, "test"):  # what is there counts, not what is wished for
            pass
    finally:
        server.kill()


@pytest.mark.integration
async def test_a_server_without_room_says_what_it_needs(tmp_path: Path) -> None:
    server = NatsServer(tmp_path, config="jetstream { max_file_store: 20MB }")
    server.start()
    cluster = dataclasses.replace(SMALL, nats_url=server.url)
    try:
        with pytest.raises(ConfigError, match=r"jf_TOKENS of 32 MiB .* max_file_store .* 318 MiB"):
            async with open_cluster(cluster, "test"):
                pass
        async with open_cluster(dataclasses.replace(FITTING, nats_url=server.url), "test"):
            pass
    finally:
        server.kill()
