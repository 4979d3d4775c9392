"""A release of the Helm chart, its containers run as processes: served from zero, seen by KEDA."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.deploy.helm_chart import HelmChart, Manifest, Rendered, env_of
from tests.e2e.role_stack import DEMO_MODEL, REPOSITORY
from tests.eventually import Looks
from tests.nats_server import NatsServer, free_port

pytestmark = [
    pytest.mark.integration, pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(240)
]  # fmt: skip
IN_IMAGE = "/opt/jetflock/demo_model"


class Pod:
    """The container of a Deployment or Job, with its ports moved to free ones."""

    def __init__(self, container: Manifest) -> None:
        self._container = container
        self.port = free_port()
        args = [str(DEMO_MODEL) if arg == IN_IMAGE else arg for arg in container["args"]]
        env = env_of(container)
        for variable in {"JETFLOCK_PORT", "JETFLOCK_METRICS_PORT"} & env.keys():
            env[variable] = str(self.port)
        for variable in {"XDG_CACHE_HOME", "HF_HOME"} & env.keys():
            del env[variable]  # the volume
        self.process = subprocess.Popen(
            [sys.executable, "-m", "jetflock", *args], cwd=REPOSITORY, env=os.environ | env
        )

    def wait_probe(self, probe: str, timeout_s: float = 90.0) -> None:
        """Until kubelet would be content."""
        url = f"http://127.0.0.1:{self.port}{self._container[probe]['httpGet']['path']}"
        for _ in Looks(timeout_s, url):
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(url).status_code == 200:
                    return
            assert self.process.poll() is None

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(30) == 0


@pytest.fixture
def monitoring_port() -> int:
    return free_port()


@pytest.fixture
def nats(tmp_path: Path, monitoring_port: int) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path / "nats", config=f"http: 127.0.0.1:{monitoring_port}\n")
    server.start()
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture
def release(tmp_path: Path, nats: NatsServer, monitoring_port: int) -> Rendered:
    endpoint = f"127.0.0.1:{monitoring_port}"
    demo = {"name": "demo", "model": IN_IMAGE, "servedName": "demo", "registerModel": True}
    return HelmChart(tmp_path).render(
        {
            "nats": {"enabled": False, "url": nats.url, "monitoringEndpoint": endpoint},
            "models": [demo | {"autoscaling": {"type": "keda", "minReplicas": 0}}],
        }
    )


def lag_that_keda_reads(scaled_object: Manifest) -> float:
    """The composed metric: what KEDA compares with the target. A missing consumer is an error."""
    lags = {}
    for trigger in scaled_object["spec"]["triggers"]:
        data = trigger["metadata"]
        url = f"http://{data['natsServerMonitoringEndpoint']}/jsz"
        query = {"acc": data["account"], "consumers": "true", "config": "true"}
        accounts = httpx.get(url, params=query).json()["account_details"]
        [consumer] = [
            consumer
            for account in accounts
            if account["name"] == data["account"]
            for stream in account["stream_detail"]
            if stream["name"] == data["stream"]
            for consumer in stream["consumer_detail"]
            if consumer["name"] == data["consumer"]
        ]
        lags[trigger["name"]] = consumer["num_pending"] + consumer["num_ack_pending"]
    formula = scaled_object["spec"]["advanced"]["scalingModifiers"]["formula"]
    return float(eval(formula, {"__builtins__": {}}, lags))


async def test_requests_wait_for_the_worker_that_keda_starts(release: Rendered) -> None:
    [job] = release.of_kind("Job")
    assert Pod(release.container(job["metadata"]["name"])).process.wait(90) == 0
    [scaled_object] = release.of_kind("ScaledObject")
    assert lag_that_keda_reads(scaled_object) == 0
    pods = [Pod(release.container(f"jf-jetflock-{role}")) for role in ("frontend", "detok")]
    try:
        for pod in pods:
            pod.wait_probe("readinessProbe")
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{pods[0].port}", timeout=120
        ) as client:
            texts = await ask_while_nobody_works(client, release, scaled_object, pods)
        assert all(texts)
        for pod in reversed(pods):
            pod.stop()
    finally:
        for pod in pods:
            pod.process.kill()
            pod.process.wait()


async def ask_while_nobody_works(
    client: httpx.AsyncClient, release: Rendered, scaled_object: Manifest, pods: list[Pod]
) -> list[str]:
    """Three requests of two classes; the worker starts when KEDA counts three."""
    body: dict[str, Any] = {"model": "demo", "prompt": "Once", "max_tokens": 8, "stream": True}
    texts = []
    async with AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(
                client.stream("POST", "/v1/completions", json=body, headers=headers)
            )
            for headers in ({}, {}, {"X-Job-Class": "batch"})
        ]
        assert lag_that_keda_reads(scaled_object) == len(streams)
        pods.append(Pod(release.container("jf-jetflock-worker-demo")))
        pods[-1].wait_probe("startupProbe")
        pods[-1].wait_probe("readinessProbe")
        for stream in streams:
            lines = [line async for line in stream.aiter_lines() if line.startswith("data: ")]
            assert lines[-1] == "data: [DONE]"
            events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
            texts.append("".join(event["choices"][0]["text"] for event in events))
    return texts
