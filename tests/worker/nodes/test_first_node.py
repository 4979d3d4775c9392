"""The first host of a model that several share: whom it takes, and that it is the only one."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from shared.cluster import Cluster
from shared.errors import ConfigError
from shared.protocol.notices import NodeHello
from tests.eventually import eventually
from tests.worker.io_stage import Stage
from worker.admin.worker_control import WeightUpdate
from worker.config import WorkerConfig, address_towards
from worker.engine_child.engine_host import EngineHost
from worker.engine_link.engine_config import EngineConfig
from worker.engine_link.engine_messages import RanksAwaited
from worker.nodes import first_node
from worker.nodes.first_node import FirstNode, hello, mismatch

TWO: dict[str, Any] = {"tp": 2, "nnodes": 2}


def node(rank: int, name: str = "", **settings: Any) -> NodeHello:
    config = EngineConfig(**TWO | {"node_rank": rank, "model_path": f"/at/{rank}"} | settings)
    return msgspec.structs.replace(hello(name or f"node-{rank}", "r1", config), host=f"host{rank}")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"log_level": "debug", "node_address": "10.0.0.2"}, ""),
        ({"dtype": "float32"}, "has dtype=float32, node 0 on host0 dtype=auto: give it the same"),
        ({"tp": 4}, "has tp=4, node 0 on host0 tp=2"),
        ({"nnodes": 2, "kv_dtype": "fp8"}, "has kv_dtype=fp8, node 0 on host0 kv_dtype=auto"),
    ],
)
def test_settings_that_differ_are_named(changes: dict[str, Any], why: str) -> None:
    said = mismatch(node(0), node(1, **changes))
    assert said.startswith("node 1 on host1 has ") if why else said == ""
    assert why in said


@pytest.mark.parametrize("name", ["version", "revision"])
def test_versions_that_differ_are_named(name: str) -> None:
    other = msgspec.structs.replace(node(1), **{name: "other", "settings": "{}"})
    assert f"has {name} other of " in mismatch(node(0), other)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"tp": 3}, "nnodes=2 does not divide tp=3"),
        ({"node_rank": 2}, "node_rank=2 is none of nnodes=2"),
        ({"node_address": "::"}, "node_address=:: must name the address"),
        ({"node_group": "a.b"}, "node_group 'a.b' must match"),
    ],
)
def test_what_no_node_can_be_told(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        WorkerConfig(**TWO | settings).check()


async def test_weights_of_several_hosts_are_not_replaced() -> None:
    update = WeightUpdate(None, None, None, num_nodes=2)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="weights that nnodes=2 hosts share are not replaced"):
        await update.checked("/other")


def test_a_node_is_reached_where_it_reaches_nats() -> None:
    assert address_towards("nats://127.0.0.1:4222,nats://other") == "127.0.0.1"


def first(cluster: Cluster, name: str) -> FirstNode:
    engine = EngineHost(None, None, None)  # type: ignore[arg-type]
    engine.ranks_awaited = RanksAwaited("10.0.0.1", 7, b"s", "{}")
    return FirstNode(cluster, "jf.ctl.m.nodes.a", lambda: node(0, name), engine)


@pytest.mark.integration
async def test_there_is_one_first_node(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two that start together one stays; who comes later goes, whatever it is called."""
    monkeypatch.setattr(first_node, "ANSWER_S", 0.3)
    nodes = {name: first(stage.cluster, name) for name in ("b", "c")}
    running = {name: asyncio.create_task(each.run()) for name, each in nodes.items()}
    with pytest.raises(ConfigError, match="b on host0 is node 0 of this model and node_group"):
        await running["c"]
    assert nodes["c"]._answer(node(1)).why_not_yet  # type: ignore[union-attr]
    await eventually(lambda: nodes["b"]._is_sure)
    with pytest.raises(ConfigError, match="b on host0 is node 0"):
        await first(stage.cluster, "a").run()
    answer = nodes["b"]._answer(node(1))
    assert answer is not None
    assert (answer.address, answer.port, answer.secret) == ("10.0.0.1", 7, b"s")
    running["b"].cancel()
