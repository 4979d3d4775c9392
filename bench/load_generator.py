"""What `jetflock bench serve` itself costs: its CPU per token, against a server that costs nothing.

    python -m bench.load_generator --streams 256 --tokens-per-s 100

The server is a process of its own that writes prepared events; no model, no JSON, no routing.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import cyclopts
import uvloop

from deploy.local.ports import free_port

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_CHOICE = '"choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]'
_EVENT = (
    'data: {"id":"chatcmpl-5f0c1d2e3f405f0c1d2e3f40","object":"chat.completion.chunk",'
    f'"created":1790000000,"model":"paced","system_fingerprint":null,{_CHOICE}}}\n\n'
)
_USAGE = 'data: {{"choices":[],"usage":{{"prompt_tokens":9,"completion_tokens":{num}}}}}\n\n'


def _http_chunk(text: str) -> bytes:
    return b"%x\r\n%b\r\n" % (len(text), text.encode())


class PacedStream(asyncio.Protocol):
    """Answers every POST with one event a pause, as often as `max_tokens` says."""

    def __init__(self, token_s: float) -> None:
        self._token_s = token_s
        self._event = _http_chunk(_EVENT)
        self._num_left = 0
        self._num_tokens = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Requests are small: each comes in one piece."""
        assert self._transport is not None
        head, _, content = data.partition(b"\r\n\r\n")
        if head.startswith(b"POST /v1/chat"):
            self._num_tokens = self._num_left = json.loads(content)["max_tokens"]
            self._transport.write(_HEAD)
            self._due = asyncio.get_running_loop().time()
            self._next()
            return
        known = b'{"data":[{"id":"paced"}]}'
        status = b"200 OK" if head.startswith(b"GET /v1/models") else b"404 Not Found"
        self._transport.write(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n" % (status, len(known)))
        self._transport.write(known)

    def _next(self) -> None:
        assert self._transport is not None
        if self._transport.is_closing():
            return
        if self._num_left == 0:
            usage = _http_chunk(_USAGE.format(num=self._num_tokens) + "data: [DONE]\n\n")
            self._transport.write(usage + b"0\r\n\r\n")
            return
        self._transport.write(self._event)
        self._num_left -= 1
        self._due += self._token_s
        asyncio.get_running_loop().call_at(self._due, self._next)


def _serve(port: int, token_s: float) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: PacedStream(token_s), "127.0.0.1", port)
        await server.serve_forever()

    uvloop.run(run())


def _measure(port: int, streams: int, num_tokens: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        command = [sys.executable, "-m", "jetflock", "bench", "serve"]
        command += ["--url", f"http://127.0.0.1:{port}", "--concurrency", str(streams)]
        command += ["--num-requests", str(2 * streams), "--output-len", str(num_tokens)]
        command += ["--json", str(path), "--input-len", "32"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        stage = json.loads(path.read_text())["stages"][0]
    return {
        "tokens/s": stage["output_rate"],
        "CPU us/token": stage["generator"]["cpu_us_per_token"],
        "CPU share": stage["generator"]["cpu_share"],
        "ITL p50 ms": stage["itl_ms"]["p50"],
        "ITL p99 ms": stage["itl_ms"]["p99"],
    }


def main(
    streams: Annotated[int, cyclopts.Parameter(help="At a time.")] = 256,
    tokens_per_s: Annotated[float, cyclopts.Parameter(help="Of each stream.")] = 100.0,
    tokens: Annotated[int, cyclopts.Parameter(help="Of each answer.")] = 400,
    repeat: int = 3,
) -> None:
    """Measure the load generator."""
    port = free_port()
    server = multiprocessing.Process(target=_serve, args=(port, 1 / tokens_per_s), daemon=True)
    server.start()
    try:
        _measure(port, 1, 4)  # it listens
        for _ in range(repeat):
            row = _measure(port, streams, tokens)
            print(", ".join(f"{key} {value:.2f}" for key, value in row.items()), flush=True)
    finally:
        server.kill()
        server.join()


if __name__ == "__main__":
    cyclopts.run(main)
