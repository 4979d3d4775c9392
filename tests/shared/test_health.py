"""What probes are told, over real HTTP, also while the event loop hangs."""

from __future__ import annotations

import asyncio
import json
import socket
import time
import urllib.error
import urllib.request
from typing import Any

import pytest
from prometheus_client import Gauge

from shared.errors import ConfigError
from shared.health import Checkup, HealthBoard
from shared.metrics import new_registry
from shared.status_server import serving_status
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
    async with asyncio.timeout(10.0):
        while True:
            answer = await probe(port, path)
            if answer[0] == status:
                return answer[1]
            await asyncio.sleep(0.05)


async def test_what_is_told() -> None:
    registry, board, port = new_registry("test"), HealthBoard(), free_port()
    Gauge("some_gauge", "One.", registry=registry).set(1)
    async with serving_status(registry, board, port):
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
    monkeypatch.setattr("shared.health._MAX_AGE_S", 0.5)
    board, port = HealthBoard(), free_port()
    board.watch(Checkup)
    async with serving_status(new_registry("test"), board, port):
        await until(port, "ready", 200)
        asked = asyncio.get_running_loop().run_in_executor(None, late_get, port)
        time.sleep(2.0)  # noqa: ASYNC251 - the loop hangs
        status, body = await asked
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
            async with serving_status(new_registry("test"), HealthBoard(), port):
                pass
