"""Streams in another JetStream domain: reached by its name, and never made a second time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.broker.jetstream import JetStream
from shared.broker.log_reader import LogReader
from shared.broker.named_subjects import is_flow_control
from shared.cluster import Cluster, open_cluster
from shared.config import ClusterConfig
from shared.errors import ConfigError
from shared.failover.server_watch import stream_behind
from shared.nats_client.connection import connect
from shared.subjects import Subjects, written_subject
from tests.leaf_nodes import DOMAIN, DomainServer, Hub
from tests.time_to_err import time_to_err

pytestmark = pytest.mark.integration

NUM_MESSAGES = 2000

OWN_STORE = 'jetstream {{\n  store_dir: "{folder}/own"\n  {domain}\n}}\n'


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    hub = Hub(tmp_path)
    hub.start()
    yield hub
    hub.kill()


@pytest.fixture
def leaf(request: pytest.FixtureRequest, hub: Hub, tmp_path: Path) -> Iterator[DomainServer]:
    """With a JetStream of its own when a test asks for its line `domain`."""
    domain = getattr(request, "param", None)
    further = "" if domain is None else OWN_STORE.format(folder=tmp_path, domain=domain)
    leaf = hub.leaf("edge", further)
    leaf.start()
    yield leaf
    leaf.kill()


def config(server: DomainServer, domain: str | None = DOMAIN) -> ClusterConfig:
    return ClusterConfig(nats_url=server.url, nats_js_domain=domain, nats_connect_timeout_s=5)


async def try_to_open(asked: ClusterConfig) -> None:
    async with open_cluster(asked, "test"):
        pass


async def test_a_leaf_writes_and_reads_the_hubs_streams(hub: Hub, leaf: DomainServer) -> None:
    async with (
        open_cluster(config(hub), "hub") as near,
        open_cluster(config(leaf), "leaf") as far,
    ):
        names = far.subjects
        await far.js.publish(names.done("a"), b"result")
        message = await near.js.get_last(names.results_stream, names.done("a"))
        assert message is not None
        assert message.data == b"result"

        bucket = far.bucket(names.workers_bucket)
        revision = await bucket.put("p.w", b"card")
        assert await bucket.put_if("p.w", b"again", revision) > revision
        assert [entry.value for entry in await near.bucket(names.workers_bucket).entries()] == [
            b"again"
        ]
        await bucket.delete("p.w")
        assert await near.bucket(names.workers_bucket).get("p.w") is None

        store = await far.js.context().object_store(names.objects_bucket)
        await store.put("prompt", b"x" * 300_000)
        kept = await (await near.js.context().object_store(names.objects_bucket)).get("prompt")
        assert kept.data == b"x" * 300_000


async def test_an_ordered_reader_at_a_leaf_reads_all(hub: Hub, leaf: DomainServer) -> None:
    async with (
        open_cluster(config(hub), "hub") as near,
        open_cluster(config(leaf), "leaf") as far,
    ):
        told: list[bytes] = []
        has_all = asyncio.Event()

        def on_message(_: str, __: int, data: bytes) -> None:
            told.append(data)
            if len(told) == NUM_MESSAGES:
                has_all.set()

        tokens = far.subjects.tokens_stream
        reader = LogReader(far.js, tokens, ["jf.tok.0.*"], 1, on_message)
        reading = asyncio.create_task(reader.run())
        try:
            await publish_all(near, NUM_MESSAGES)  # beyond one window of flow control
            async with asyncio.timeout(20):
                await has_all.wait()
        finally:
            reading.cancel()
            await asyncio.wait([reading])
        assert told == [b"%d" % i + b"x" * 2000 for i in range(NUM_MESSAGES)]


async def publish_all(cluster: Cluster, num: int) -> None:
    for i in range(num):
        await cluster.js.publish("jf.tok.0.w", b"%d" % i + b"x" * 2000)


@pytest.mark.parametrize("leaf", ["domain: edge"], indirect=True)
async def test_a_leafs_own_jetstream_takes_no_second_set(hub: Hub, leaf: DomainServer) -> None:
    """Whether the hub's is there, or not yet."""
    for _ in "12":
        with pytest.raises(ConfigError, match="'edge': give --nats-js-domain"):
            await try_to_open(config(leaf, None))
        assert await num_streams(leaf) == 0
        await try_to_open(config(hub))
    await try_to_open(config(leaf))
    with pytest.raises(ConfigError, match="another one that is reached from here stores"):
        await try_to_open(config(leaf, "edge"))
    assert await num_streams(leaf) == 0


@pytest.mark.parametrize("leaf", [""], indirect=True)
async def test_nor_does_one_without_a_domain(hub: Hub, leaf: DomainServer) -> None:
    await try_to_open(config(hub))
    with pytest.raises(ConfigError, match="another one that is reached from here stores"):
        await try_to_open(config(leaf, None))
    assert await num_streams(leaf) == 0


async def num_streams(server: DomainServer) -> int:
    """Of its own JetStream."""
    nc = await connect(config(server), "look")
    try:
        return int((await JetStream(nc).api("INFO"))["streams"])
    finally:
        await nc.close()


async def test_who_names_no_domain_is_told_which_one_answers(hub: Hub) -> None:
    with pytest.raises(ConfigError, match=f"--nats-js-domain {DOMAIN}"):
        await try_to_open(config(hub, None))


async def test_a_hub_that_is_away_is_waited_for(hub: Hub, leaf: DomainServer) -> None:
    await try_to_open(config(hub))
    hub.kill()
    opening = asyncio.create_task(try_to_open(config(leaf)))
    await time_to_err(0.5)  # some attempts
    assert not opening.done()
    await asyncio.to_thread(hub.start)
    await opening


async def test_a_domain_that_is_nowhere_is_named(leaf: DomainServer) -> None:
    with pytest.raises(ConfigError, match="no server of JetStream domain 'other' is reached"):
        await try_to_open(config(leaf, "other"))


@pytest.mark.parametrize("domain", ["", "a.b", "*", "a b", "x" * 65])
def test_what_is_no_domain_is_refused(domain: str) -> None:
    with pytest.raises(ConfigError, match="nats_js_domain"):
        Subjects(js_domain=domain)


def test_what_a_slow_request_was_about_is_seen_behind_a_domain() -> None:
    names = Subjects(js_domain="hub")
    written = written_subject(f"$KV.{names.meta_bucket}.k", "hub")
    assert stream_behind(written, names) == f"KV_{names.meta_bucket}"
    assert stream_behind("$JS.hub.API.STREAM.MSG.GET.jf_TOKENS", names) == "jf_TOKENS"
    assert stream_behind("$JS.hub.API.STREAM.INFO.jf_TOKENS", names) is None


@pytest.mark.parametrize(
    ("subject", "is_one"),
    [
        ("$JS.FC.jf_TOKENS.c.abc", True),
        ("$JS.FC.hub.ACCHASH.jf_TOKENS.c.abc", True),
        ("$JS.FC.jf_OTHER.c.abc", False),
        ("$JS.FC.jf_TOKENS", False),
        ("$JS.ACK.jf_TOKENS.c.abc", False),
        ("$JS.FC.jf_TOKENS.c.*", False),
        ("", False),
    ],
)
def test_flow_control_subjects(subject: str, is_one: bool) -> None:
    assert is_flow_control(subject, "jf_TOKENS") is is_one
