"""What `bench.plane` measures: our stack, or another server that speaks OpenAI's API."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import psutil

from bench.local_serve import LocalServe, local_serve
from bench.openai_client import OpenAIClient
from bench.stream_client import PeerProtocol, StreamClient, StreamProtocol, StreamResult
from deploy.local.ports import free_port

MODEL = "jetflock-demo"
PREFILL_S = 0.020
TOKEN_S = 0.010
_SCRIPTED = (
    "--scripted",
    "--scripted-token-low", "300",
    "--scripted-token-high", "1200",
    "--max-running", "256",
    "--max-step-tokens", "512",
)  # fmt: skip
_PACE = ("--scripted-prefill-s", str(PREFILL_S), "--scripted-token-s", str(TOKEN_S))

Pace = Literal["paced", "fast"]
FLAGS: dict[Pace, tuple[str, ...]] = {"paced": (*_SCRIPTED, *_PACE), "fast": _SCRIPTED}


@dataclass(frozen=True)
class ClientKind:
    """How requests are sent."""

    library: Literal["ours", "openai"] = "ours"
    acks_at_once: bool = False  # TCP_QUICKACK, which `openai` does not have


@dataclass(frozen=True)
class Target:
    """A server that runs."""

    port: int
    model: str
    protocol: type[StreamProtocol]
    cpu_s: Callable[[], dict[str, float]]  # seconds so far, by part

    async def run(
        self, client: ClientKind, num_tokens: int, concurrency: int, num_requests: int
    ) -> list[StreamResult]:
        """Streams chat answers of `num_tokens` tokens, `concurrency` at a time."""
        if client.library == "openai":
            other = OpenAIClient(self.port, self.model, num_tokens)
            return await other.run(concurrency, num_requests)
        ours = StreamClient(
            self.port, self.model, num_tokens, self.protocol, acks_at_once=client.acks_at_once
        )
        return await ours.run(concurrency, num_requests)


def target_of(serve: LocalServe) -> Target:
    """Our stack; CPU is told by role."""
    return Target(serve.port, MODEL, StreamProtocol, serve.cpu_s)


@contextmanager
def our_stack(pace: Pace) -> Iterator[Target]:
    with local_serve(*FLAGS[pace]) as serve:
        yield target_of(serve)


@contextmanager
def peer(command: str, pace: Pace, timeout_s: float = 60.0) -> Iterator[Target]:
    """Starts `command PORT PACE`, and ends it with all that it has started.

    Its model is the first of its list; CPU is that of all its processes. Raises SystemExit.
    """
    port = free_port()
    process = subprocess.Popen(
        [*shlex.split(command), str(port), pace],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        model = _model_of(port, process, timeout_s)
        family = psutil.Process(process.pid)
        yield Target(port, model, PeerProtocol, lambda: {"all": _cpu_s(family)})
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _cpu_s(family: psutil.Process) -> float:
    times = [each.cpu_times() for each in (family, *family.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def _model_of(port: int, process: subprocess.Popen[bytes], timeout_s: float) -> str:
    """Waits until it serves one."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5) as answer:
                if models := json.load(answer)["data"]:
                    return str(models[0]["id"])
        except OSError:
            pass
        time.sleep(0.2)
    raise SystemExit("the peer serves no model")
