"""`jetflock setup` makes what roles and scalers look for, and refuses names it does not know."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import deploy.demo_model
from shared.catalog.model_catalog import ModelCatalog
from shared.cluster import open_cluster
from shared.config import ClusterConfig
from shared.protocol.model_cards import ModelCard
from shared.subjects import Subjects, pool_slug
from tests.forked_program import run_program
from tests.nats_server import NatsServer

DEMO = f"{deploy.demo_model.__path__[0]}/checkpoint"


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    return run_command("setup", *argv)


def run_command(*argv: str) -> subprocess.CompletedProcess[str]:
    return run_program("jetflock", *argv)


async def consumers_and_cards(nats_server: NatsServer) -> tuple[set[str], list[ModelCard]]:
    async with open_cluster(ClusterConfig(nats_url=nats_server.url), "test") as cluster:
        answer = await cluster.js.api(f"CONSUMER.NAMES.{cluster.subjects.requests_stream}")
        return set(answer["consumers"]), await ModelCatalog(cluster).cards()


@pytest.mark.e2e
def test_names_are_told_without_a_broker() -> None:
    done = run("--model-name", "org/Some Model", "--prefix", "blue", "--dry-run")
    pool = pool_slug("org/Some Model")
    assert json.loads(done.stdout) == {
        "model": "org/Some Model",
        "pool": pool,
        "stream": "blue_REQUESTS",
        "consumers": Subjects("blue").consumers(pool),
    }


@pytest.mark.e2e
@pytest.mark.parametrize(
    "argv", [("setup", "--nats-url", "nats://127.0.0.1:1"), ("models",)], ids=lambda argv: argv[0]
)
def test_a_model_whose_weights_are_cut_is_refused(argv: tuple[str, ...], tmp_path: Path) -> None:
    """Before a broker is asked for: a card of it would be of weights that nobody can load."""
    path = tmp_path / "model"
    shutil.copytree(DEMO, path)
    with (path / "model.safetensors").open("r+b") as file:
        file.truncate(1000)
    done = run_command(*argv, str(path))
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert "model.safetensors is cut: it has 1000 bytes, and its head ends at" in done.stderr


@pytest.mark.integration
async def test_streams_and_consumers_are_made_once(nats_server: NatsServer) -> None:
    for _ in range(2):
        done = run("--nats-url", nats_server.url, "--model-name", "m")
        assert done.returncode == 0, done.stderr
    consumers, cards = await consumers_and_cards(nats_server)
    assert consumers == set(Subjects().consumers(pool_slug("m")))
    assert cards == []


@pytest.mark.integration
async def test_a_model_is_listed_before_any_worker(nats_server: NatsServer) -> None:
    done = run(DEMO, "--nats-url", nats_server.url, "--model-name", "demo")
    assert done.returncode == 0, done.stderr
    consumers, [card] = await consumers_and_cards(nats_server)
    assert (card.name, card.pool) == ("demo", pool_slug("demo"))
    assert consumers == set(json.loads(done.stdout)["consumers"])


@pytest.mark.integration
async def test_what_a_scaler_was_told_is_compared_first(nats_server: NatsServer) -> None:
    done = run("--nats-url", nats_server.url, "--model-name", "m", "--expect-consumers", "m_batch")
    assert done.returncode == 2
    assert done.stderr.startswith("jetflock setup: expect_consumers is m_batch, but")
    consumers, _ = await consumers_and_cards(nats_server)
    assert consumers == set()


@pytest.mark.e2e
def test_no_broker_is_one_sentence() -> None:
    done = run("--nats-url", "nats://127.0.0.1:1", "--nats-connect-timeout-s", "0.1")
    assert done.returncode == 2
    assert done.stderr.startswith("jetflock setup: cannot connect to NATS at nats://127.0.0.1:1")
    assert len(done.stderr.splitlines()) == 1
