"""Runs our whole stack: `jetflock serve`, and a streaming client in this process."""

from __future__ import annotations

import importlib.metadata
from contextlib import ExitStack

from bench.local_serve import local_serve
from bench.peers.http_traffic import run_over_http
from bench.peers.runner import RequestTrace, RunnerSettings, serve
from bench.stream_client import StreamProtocol

MODEL = "bench"
START_TIMEOUT_S = 120.0


class JetflockHttpRunner:
    """The stack on a free port, with a store of its own; it ends with us."""

    def __init__(self, settings: RunnerSettings) -> None:
        self.version = importlib.metadata.version("jetflock")
        flags = [settings.model, "--model-name", MODEL, "--dtype", settings.dtype]
        flags += ["--num-threads", str(settings.num_threads)]
        flags += ["--max-running", str(settings.max_running)]
        flags += ["--max-context-len", str(settings.max_len)]
        flags += ["--kv-memory-bytes", str(settings.kv_gib << 30)]
        for name, value in settings.extra.items():
            flags += [f"--{name.replace('_', '-')}", value]
        self._stack = ExitStack()
        self._serve = self._stack.enter_context(local_serve(*flags, timeout_s=START_TIMEOUT_S))

    def run(self, prompts: list[list[int]], output_len: int) -> list[RequestTrace]:
        return run_over_http(self._serve.port, MODEL, prompts, output_len, StreamProtocol)

    def close(self) -> None:
        self._stack.close()


if __name__ == "__main__":
    serve(JetflockHttpRunner)
