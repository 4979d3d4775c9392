"""What we ship for nats-server means what is written there: asked of a real one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from deploy.local.data_folder import DataFolder
from deploy.local.nats_binary import find_nats_server
from deploy.local.nats_child import NatsChild
from shared.config import ClusterConfig
from shared.storage.byte_budget import ByteBudget
from tests.eventually import Looks
from tests.leaf_nodes import Hub
from tests.nats_cluster import CONFIG, ClusteredServer, monitored
from tests.nats_server import free_port

pytestmark = pytest.mark.integration

DEPLOY = Path(__file__).parents[2] / "deploy"
S = 1_000_000_000
MIB, GIB = 1 << 20, 1 << 30

# What each duration and size of a shipped file has to be: durations in ns, sizes in bytes.
MEANT: dict[str, dict[str, int]] = {
    "nats/cluster.conf": {
        "jetstream.max_file_store": 16 * GIB,
        "jetstream.max_memory_store": 256 * MIB,
        "jetstream.sync_interval": 120 * S,
        "max_payload": MIB,
        "write_deadline": 10 * S,
        "ping_interval": 10 * S,
        "ping_max": 2,
    },
    "nats/hub.conf": {
        "jetstream.max_file_store": 16 * GIB,
        "jetstream.max_memory_store": 256 * MIB,
        "jetstream.sync_interval": 120 * S,
        "max_payload": MIB,
        "write_deadline": 10 * S,
        "ping_interval": 2 * S,
        "ping_max": 2,
    },
    "nats/leaf.conf": {
        "leafnodes.reconnect": 1 * S,
        "max_payload": MIB,
        "write_deadline": 10 * S,
        "ping_interval": 2 * S,
        "ping_max": 2,
    },
}
# Where /varz tells it, when it has another name there.
TOLD_AS = {
    "jetstream.max_file_store": "jetstream.config.max_storage",
    "jetstream.max_memory_store": "jetstream.config.max_memory",
    "jetstream.sync_interval": "jetstream.config.sync_interval",
}
UNTOLD = ("leafnodes.reconnect",)
SETTING = re.compile(r"^\s*(\w+):\s*\"?[\d.]+[a-zA-Z]*\"?\s*(#.*)?$")
BLOCK = re.compile(r"^\s*(\w*)\s*\{\s*$")


def numbers_of(text: str) -> set[str]:
    """The names of all settings whose value is a number with or without a unit."""
    found, blocks = set(), []
    for line in text.splitlines():
        if line.strip().startswith("#"):
            continue
        if match := BLOCK.match(line):
            blocks.append(match[1])
        elif line.strip() == "}":
            blocks.pop()
        elif match := SETTING.match(line):
            found.add(".".join([*filter(None, blocks), match[1]]))
    return found


def told(varz: Mapping[str, Any], name: str) -> int:
    value: Any = varz
    for part in TOLD_AS.get(name, name).split("."):
        value = value[part]
    return int(value)


def wait_for_varz(monitor_port: int, *, stores: bool = True) -> dict[str, Any]:
    for _ in Looks(why="the server tells nothing"):
        varz = monitored(monitor_port, "varz")
        if varz and (not stores or varz["jetstream"].get("config")):
            break
    return varz


def test_every_shipped_file_is_known_here() -> None:
    assert {str(path.relative_to(DEPLOY)) for path in DEPLOY.rglob("*.conf")} == {*MEANT}
    for name, meant in MEANT.items():
        assert numbers_of((DEPLOY / name).read_text()) == {*meant}, name


def test_durations_and_sizes_of_the_cluster(tmp_path: Path) -> None:
    server = ClusteredServer("n1", tmp_path)
    server.start([server.route_url])
    try:
        varz = wait_for_varz(server.monitor_port)
    finally:
        server.kill()
    meant = MEANT[str(CONFIG.relative_to(DEPLOY))]
    assert {name: told(varz, name) for name in meant} == meant


def test_durations_and_sizes_of_hub_and_leaf(tmp_path: Path) -> None:
    hub_port, leaf_port = free_port(), free_port()
    hub = Hub(tmp_path, f"http: 127.0.0.1:{hub_port}\n")
    leaf = hub.leaf("edge", f"http: 127.0.0.1:{leaf_port}\n")
    try:
        hub.start()
        leaf.start()
        varz = {
            "nats/hub.conf": wait_for_varz(hub_port),
            "nats/leaf.conf": wait_for_varz(leaf_port, stores=False),
        }
    finally:
        leaf.kill()
        hub.kill()
    for name, found in varz.items():
        meant = {key: each for key, each in MEANT[name].items() if key not in UNTOLD}
        assert {key: told(found, key) for key in meant} == meant


def test_sizes_of_the_server_of_serve(tmp_path: Path) -> None:
    budget = ByteBudget.of(ClusterConfig())
    data = DataFolder.lock(tmp_path / "data")
    child = NatsChild.prepare(find_nats_server().path, free_port(), data, budget)
    server = ClusteredServer("local", tmp_path, child.config_file)
    server.start([])
    try:
        varz = wait_for_varz(server.monitor_port)
    finally:
        server.kill()
    config = varz["jetstream"]["config"]
    assert config["max_storage"] == budget.total
    assert config["sync_interval"] == 120 * S
    assert varz["max_payload"] == MIB
