"""What probes are told, over real HTTP, also while the event loop hangs."""

from __future__ import annotations

import asyncio
import json
import socket
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import Gauge

from shared.config import ClusterConfig
from shared.errors import ConfigError
from shared.status.health import Checkup, HealthBoard
from shared.status.status_server import StatusAddress, serving_status
from shared.telemetry.metrics import new_registry
from tests.eventually import Looks
from tests.nats_server import free_port


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as exc:
        return exc.code, exc.read().decode()


async def probe(port: int, path: str) -> tuple[int, dict[str, Any]]:
    status, body = await asyncio.to_thread(get, port, f"/health/{path}")
    return status, json.loads(body)


async def until(port: int, path: str, status: int) -> dict[str, Any]:
    """The board looks a few times a second."""
    async for _ in Looks(30, f"it does not answer {status}"):
        answer = await probe(port, path)
        if answer[0] == status:
            break
    return answer[1]


async def test_what_is_told() -> None:
    registry, board, port = new_registry("test"), HealthBoard(), free_port()
    Gauge("some_gauge", "One.", registry=registry).set(1)
    async with serving_status(registry, board, StatusAddress(port)):
        assert await probe(port, "live") == (200, {"status": "live"})
        assert await probe(port, "ready") == (
            503,
            {"status": "not ready", "why": ["it is starting"]},
        )
        board.watch(Checkup)
        assert await until(port, "ready", 200) == {"status": "ready"}
        board.watch(lambda: Checkup(not_live=("it hangs",), not_ready=("it drains",)))
        assert await until(port, "live", 503) == {"status": "not live", "why": ["it hangs"]}
        assert (await probe(port, "ready"))[1]["why"] == ["it hangs", "it drains"]
        assert "some_gauge 1.0" in (await asyncio.to_thread(get, port, "/metrics"))[1]
        assert (await asyncio.to_thread(get, port, "/nothing"))[0] == 404
    with socket.create_server(("0.0.0.0", port)):  # it is free again
        pass


async def test_a_loop_that_does_not_turn_is_not_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.status.health._MAX_AGE_S", 0.5)
    board, port = HealthBoard(), free_port()
    board.watch(Checkup)
    async with serving_status(new_registry("test"), board, StatusAddress(port)):
        await until(port, "ready", 200)
        with ThreadPoolExecutor() as threads:  # the loop hangs until it has the answer
            status, body = threads.submit(late_get, port).result(60.0)
        assert status == 503
        assert "event loop has not turned" in json.loads(body)["why"][0]
        await until(port, "live", 200)


def late_get(port: int) -> tuple[int, str]:
    time.sleep(1.0)
    return get(port, "/health/live")


async def test_a_taken_port_is_named() -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"{port}: .* --metrics-port"):
            async with serving_status(new_registry("test"), HealthBoard(), StatusAddress(port)):
                pass


async def test_metrics_may_ask_for_a_key_and_names_are_our_own(tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("sesame\n")

    async def ask(port: int, path: str, **headers: str) -> int:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            return (await client.get(path, headers=headers)).status_code

    registry = new_registry("test")
    config = ClusterConfig(metrics_port=free_port(), metrics_key_file=key_file)
    async with serving_status(registry, HealthBoard(), StatusAddress.of(config)):
        port = config.metrics_port
        assert await ask(port, "/metrics") == 401
        assert await ask(port, "/metrics", authorization="Bearer Sesame") == 401
        assert await ask(port, "/metrics", authorization="Bearer sesame", host="x.example") == 200
        assert await ask(port, "/health/live") != 401, "probes have none"
    config = ClusterConfig(metrics_port=free_port())
    async with serving_status(registry, HealthBoard(), StatusAddress.of(config)):
        assert await ask(config.metrics_port, "/metrics") == 200
        assert await ask(config.metrics_port, "/metrics", host="evil.example") == 403
        with socket.create_server(("127.0.0.2", config.metrics_port)):
            pass  # free, since it listens on 127.0.0.1 alone
    key_file.write_text("")
    with pytest.raises(ConfigError, match="holds no key"):
        StatusAddress.of(ClusterConfig(metrics_key_file=key_file))
