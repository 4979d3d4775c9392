"""Model cards in KV."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from shared.admin.control_plane import ControlPlane, forget_model
from shared.broker.objects import ObjectEntry
from shared.catalog import model_catalog
from shared.catalog.model_catalog import ModelCatalog
from shared.catalog.model_status import PoolHeartbeats
from shared.checkpoint.model_files import ModelFiles
from shared.checkpoint.model_options import ModelOptions
from shared.checkpoint.tokenizer_bundle import TokenizerBundle
from shared.cluster import open_cluster
from shared.config import ClusterConfig
from shared.errors import ConfigError, NotFound
from shared.protocol.codec import encode
from shared.protocol.model_cards import ModelCard
from shared.protocol.role_cards import SUPERVISOR, RoleCard
from shared.subjects import new_rid
from tests.e2e.role_stack import DEMO_MODEL
from tests.nats_server import NatsServer

pytestmark = pytest.mark.integration


async def test_garbage_among_the_cards_concerns_no_model(nats_server: NatsServer) -> None:
    """A frontend reads them all, every second: one bad card must not end it."""
    async with open_cluster(ClusterConfig(nats_url=nats_server.url), "test") as cluster:
        catalog = ModelCatalog(cluster)
        card = await catalog.register(ModelFiles.read(DEMO_MODEL), "demo")
        cards = cluster.bucket(cluster.subjects.models_bucket)
        for number, garbage in enumerate((b"", b"\xc1", b"\x81", b"\x81\xa1v\x63")):
            await cards.put(f"garbage-{number}", garbage)
        assert await catalog.cards() == [card]


async def test_older_streams_are_forgotten_at_any_moment_of_a_look(nats_server: NatsServer) -> None:
    async with open_cluster(ClusterConfig(nats_url=nats_server.url), "test") as cluster:
        older, looks = ModelCatalog(cluster), []
        catalogs = [ModelCatalog(cluster, older) for _ in range(100)]
        for catalog in catalogs:
            looks.append(asyncio.create_task(catalog.heartbeats()))
            await asyncio.sleep(0)
        while not all(look.done() for look in looks):
            if catalogs:
                catalogs.pop().forget_older()
            await asyncio.sleep(0)
        await asyncio.gather(*looks)


async def test_a_model_is_announced_by_who_has_loaded_it(nats_server: NatsServer) -> None:
    async with open_cluster(ClusterConfig(nats_url=nats_server.url), "test") as cluster:
        catalog, files = ModelCatalog(cluster), ModelFiles.read(DEMO_MODEL)
        card = await catalog.register(files, "demo", is_announced=False)
        assert not card.is_announced
        await catalog.announce(card.pool)
        again = await catalog.register(files, "demo", is_announced=False)
        assert again.is_announced, "whoever loads it as well hides it from nobody"
        await catalog.announce("nobody-knows-it")
        assert [card.name for card in await catalog.cards()] == ["demo"]


async def test_workers_whose_keys_and_values_have_other_bits_serve_no_model_together(
    nats_server: NatsServer,
) -> None:
    """So that no request which one of them has begun goes on with the other's."""
    async with open_cluster(ClusterConfig(nats_url=nats_server.url), "test") as cluster:
        catalog, files = ModelCatalog(cluster), ModelFiles.read(DEMO_MODEL)
        card = await catalog.register(files, "demo")
        int8 = ModelFiles.read(DEMO_MODEL, options=ModelOptions(kv_dtype="int8"))
        workers = cluster.bucket(cluster.subjects.workers_bucket)
        await workers.put(f"{card.pool}.w", b"of another host")
        with pytest.raises(ConfigError, match="'demo' is being served with other weights"):
            await catalog.register(int8, "demo")
        await workers.delete(f"{card.pool}.w")
        after = await catalog.register(int8, "demo")
        assert (after.kv_dtype, after.revision) == ("int8", int8.revision)


async def test_workers_with_other_chat_templates_serve_no_model_together(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    file = tmp_path / "other.jinja"
    file.write_text("{{ messages }}")
    async with open_cluster(ClusterConfig(nats_url=nats_server.url), "test") as cluster:
        catalog = ModelCatalog(cluster)
        card = await catalog.register(ModelFiles.read(DEMO_MODEL), "demo")
        other = ModelFiles.read(DEMO_MODEL, options=ModelOptions(chat_template=str(file)))
        workers = cluster.bucket(cluster.subjects.workers_bucket)
        await workers.put(f"{card.pool}.w", b"of another host")
        with pytest.raises(ConfigError, match="served with another tokenizer or chat template"):
            await catalog.register(other, "demo")
        await workers.delete(f"{card.pool}.w")
        after = await catalog.register(other, "demo")
        bundle = await catalog.bundle(after.tokenizer_hash)
        assert bundle.chat_template == "{{ messages }}"


async def test_what_others_serve_or_an_operator_keeps_is_not_withdrawn(
    nats_server: NatsServer,
) -> None:
    async with open_cluster(ClusterConfig(nats_url=nats_server.url), "test") as cluster:
        catalog, files = ModelCatalog(cluster), ModelFiles.read(DEMO_MODEL)
        pool = (await catalog.register(files, "demo")).pool
        workers = cluster.bucket(cluster.subjects.workers_bucket)
        roles = cluster.bucket(cluster.subjects.roles_bucket)
        await workers.put(f"{pool}.w", b"of another host")
        assert not await catalog.withdraw(pool, "serve-1")
        await workers.delete(f"{pool}.w")
        for name in ("serve-1", "serve-2"):
            await roles.put(name, encode(RoleCard(name, SUPERVISOR, pool=pool)))
        assert not await catalog.withdraw(pool, "serve-1")
        await roles.delete("serve-2")
        assert await catalog.withdraw(pool, "serve-1")
        assert not (await catalog.cards())[0].is_announced
        await catalog.register(files, "demo", is_kept=True)
        assert not await catalog.withdraw(pool, "serve-1")
        assert (await catalog.cards())[0].is_announced


async def test_a_forgotten_model_leaves_nothing_that_waits(nats_server: NatsServer) -> None:
    async with open_cluster(ClusterConfig(nats_url=nats_server.url), "test") as cluster:
        catalog, files = ModelCatalog(cluster), ModelFiles.read(DEMO_MODEL)
        pool = (await catalog.register(files, "demo", is_kept=True)).pool
        plane = ControlPlane(cluster, "test")
        roles = cluster.bucket(cluster.subjects.roles_bucket)
        await roles.put("serve-1", encode(RoleCard("serve-1", SUPERVISOR, pool=pool)))
        with pytest.raises(ConfigError, match="'demo' is being served"):
            await forget_model(cluster, plane, "demo")
        await roles.delete("serve-1")
        await cluster.js.publish(
            cluster.subjects.request(pool, "interactive", "", new_rid()), b"garbage"
        )
        assert await forget_model(cluster, plane, "demo") == 0
        assert await catalog.cards() == []
        stream = cluster.subjects.requests_stream
        state = (await cluster.js.api(f"STREAM.INFO.{stream}"))["state"]
        assert (state["messages"], state["consumer_count"]) == (0, 0)
        with pytest.raises(NotFound, match="no model 'demo'"):
            await forget_model(cluster, plane, "demo")


@pytest.mark.parametrize("meanwhile", ["served", "written"])
async def test_a_model_that_comes_back_while_it_is_forgotten_stays(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    async with open_cluster(ClusterConfig(nats_url=nats_server.url), "test") as cluster:
        catalog, files = ModelCatalog(cluster), ModelFiles.read(DEMO_MODEL)
        pool = (await catalog.register(files, "demo")).pool
        roles = cluster.bucket(cluster.subjects.roles_bucket)
        num_looks, heartbeats = 0, ModelCatalog.heartbeats

        async def look(looking: ModelCatalog) -> PoolHeartbeats:
            nonlocal num_looks
            num_looks += 1
            if num_looks == 2 and meanwhile == "served":
                await roles.put("serve-1", encode(RoleCard("serve-1", SUPERVISOR, pool=pool)))
            seen = await heartbeats(looking)
            if num_looks == 2 and meanwhile == "written":
                await catalog.announce(pool, is_kept=True)
            return seen

        monkeypatch.setattr(ModelCatalog, "heartbeats", look)
        with pytest.raises(ConfigError, match="'demo' is being served"):
            await forget_model(cluster, ControlPlane(cluster, "test"), "demo")
        assert [card.pool for card in await catalog.cards()] == [pool]
        consumers = await cluster.js.api(f"CONSUMER.NAMES.{cluster.subjects.requests_stream}")
        assert consumers["consumers"]


@pytest.mark.parametrize(
    ("seen", "deleted"),
    [
        ("first look", "card"),
        ("first look", "second look"),
        ("first look", "end"),
        ("card", "second look"),
        ("card", "end"),
    ],
)
async def test_who_registers_finds_the_tokenizer_that_another_deletes_just_then(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch, seen: str, deleted: str
) -> None:
    """Somebody has seen the tokenizer and no card that names it, before this step of a worker, and
    deletes it before that one.
    """
    monkeypatch.setattr(model_catalog, "CONFIRMED_S", 0.0)  # as if it had been confirmed long ago
    async with open_cluster(ClusterConfig(nats_url=nats_server.url), "test") as cluster:
        catalog, files = ModelCatalog(cluster), ModelFiles.read(DEMO_MODEL)
        objects = cluster.objects(cluster.subjects.objects_bucket)
        bundle = files.tokenizer_bundle()
        await catalog.put_bundle(bundle)
        found: list[ObjectEntry] = []

        async def before(step: str) -> None:
            if step == seen:
                entry = await objects.find(bundle.content_hash)
                assert entry is not None
                found.append(entry)
            if step == deleted:
                await objects.delete_unchanged(found[0])

        put_bundle, register = ModelCatalog.put_bundle, ModelCatalog._register
        looks = iter(("first look", "second look"))

        async def look(self: ModelCatalog, bundle: TokenizerBundle) -> None:
            await before(next(looks))
            await put_bundle(self, bundle)

        async def write_card(self: ModelCatalog, card: ModelCard, **options: bool) -> ModelCard:
            await before("card")
            return await register(self, card, starts_over=options["starts_over"])

        monkeypatch.setattr(ModelCatalog, "put_bundle", look)
        monkeypatch.setattr(ModelCatalog, "_register", write_card)
        card = await catalog.register(files, "demo")
        await before("end")
        assert await catalog.bundle(card.tokenizer_hash) == bundle
