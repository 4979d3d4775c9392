"""`python -m bench.leaf`: what it costs that a worker stands behind a leaf node.

The shipped hub.conf and leaf.conf, frontend and detokenizer at the hub, and a scripted worker (20
ms of prefill, 10 ms a token) at the hub, then behind the leaf, whose link takes so long each way.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, TypeAlias

import cyclopts
import psutil

from bench.chaos.tcp_proxy import TcpProxy
from bench.local_serve import LocalServe, wait_ready
from bench.plane import Load, Run, added_ttft, print_scenario, run_streams
from bench.plane_target import FLAGS, MODEL, ClientKind, target_of
from deploy.local.nats_binary import find_nats_server
from deploy.local.ports import free_port

CHECKPOINT = Path(__file__).parents[1] / "deploy/demo_model/checkpoint"
CONFIGS = Path(__file__).parents[1] / "deploy/nats"
DOMAIN = "hub"
_Process: TypeAlias = contextlib.AbstractContextManager[subprocess.Popen[bytes]]

_START_S = 60.0
_END_S = 10.0


@contextlib.contextmanager
def _running(*argv: str | Path, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(argv, env=os.environ | environ, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def _link(target_port: int, delay_s: float) -> Iterator[int]:
    """The port of a proxy in a thread of its own: what it carries waits for no measurement."""
    loop, proxy = asyncio.new_event_loop(), TcpProxy(target_port, delay_s=delay_s)
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(proxy.__aenter__(), loop).result()
    try:
        yield proxy.port
    finally:
        asyncio.run_coroutine_threadsafe(proxy.__aexit__(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


class _Hub:
    """A hub that holds the streams, with one port for roles and one for leaves."""

    def __init__(self, folder: Path) -> None:
        self.port, self.leaf_port = free_port(), free_port()
        self._folder = folder

    def serve(self) -> _Process:
        return _running(
            find_nats_server(None).path, "-c", CONFIGS / "hub.conf",
            NATS_NAME="hub", NATS_LISTEN=f"127.0.0.1:{self.port}",
            NATS_LEAF_LISTEN=f"127.0.0.1:{self.leaf_port}", NATS_STORE=str(self._folder / "store"),
            NATS_LEAF_USER="leaf", NATS_LEAF_PASSWORD="leaf", NATS_JS_DOMAIN=DOMAIN,
        )  # fmt: skip

    @contextlib.contextmanager
    def leaf(self, delay_s: float) -> Iterator[int]:
        """The port for roles of a leaf node whose link takes so long each way."""
        port = free_port()
        with (
            _link(self.leaf_port, delay_s) as link_port,
            _running(
                find_nats_server(None).path, "-c", CONFIGS / "leaf.conf",
                NATS_NAME="leaf", NATS_LISTEN=f"127.0.0.1:{port}",
                NATS_HUB_URL=f"nats-leaf://leaf:leaf@127.0.0.1:{link_port}",
            ),
        ):  # fmt: skip
            yield port


def _role(name: str, nats_port: int, *flags: str) -> _Process:
    return _running(
        sys.executable, "-m", "jetflock", name, *flags, "--nats-js-domain", DOMAIN,
        "--nats-url", f"nats://127.0.0.1:{nats_port}", "--log-level", "error",
        "--nats-connect-timeout-s", str(_START_S),
    )  # fmt: skip


def _measure(name: str, hub: _Hub, port: int, worker_port: int, repeat: int) -> None:
    with (
        _role("frontend", hub.port, "--port", str(port)) as frontend,
        _role("detok", hub.port),
        _role("worker", worker_port, str(CHECKPOINT), "--model-name", MODEL, *FLAGS["paced"]),
    ):
        wait_ready(port, frontend, _START_S)
        target = target_of(LocalServe(port, psutil.Process(frontend.pid)))
        run_streams(target, Load(4, 8))  # warm up
        rows = [added_ttft(Run.of(target, ClientKind(), Load(1, 10))) for _ in range(repeat)]
        print_scenario(name, rows)


def main(
    delays_ms: Annotated[
        tuple[float, ...], cyclopts.Parameter(help="Of the leaf's link, each way.")
    ] = (0.0, 25.0, 100.0),
    repeat: Annotated[int, cyclopts.Parameter(help="Repetitions; medians are printed.")] = 3,
) -> None:
    """Measure a worker at the hub, then behind a leaf at each delay."""
    with tempfile.TemporaryDirectory() as folder:
        hub = _Hub(Path(folder))
        with hub.serve():
            _measure("worker at the hub", hub, free_port(), hub.port, repeat)
            for delay_ms in delays_ms:
                with hub.leaf(delay_ms / 1000) as leaf_port:
                    name = f"worker behind a leaf, {delay_ms:g} ms each way"
                    _measure(name, hub, free_port(), leaf_port, repeat)


if __name__ == "__main__":
    cyclopts.run(main)
