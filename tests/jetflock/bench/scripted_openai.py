"""A server that answers by a script: pieces of bytes, and pauses between them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

Step = bytes | float  # to send, or seconds to wait
HANG_UP = -1.0
MODELS = {"data": [{"id": "scripted", "max_model_len": 4096}]}


def event(text: str, finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def usage_event(prompt: int, output: int, cached: int | None = None) -> bytes:
    usage: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": output}
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    return b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def stream_head(kind: bytes = b"text/event-stream; charset=utf-8") -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: " + kind + b"\r\nTransfer-Encoding: chunked\r\n\r\n"


def http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


END = b"0\r\n\r\n"


def stream(*steps: Step, head: bytes | None = None) -> list[Step]:
    """A chunked answer; floats are pauses."""
    body: list[Step] = [step if isinstance(step, float) else http_chunk(step) for step in steps]
    return [head or stream_head(), *body, END]


def whole(status: int, body: object, *headers: str) -> list[Step]:
    content = json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", "Content-Type: application/json", *headers]
    head = "\r\n".join([*lines, f"Content-Length: {len(content)}", "", ""]).encode()
    return [head + content]


Script = Callable[[str, Any], Sequence[Step] | None]  # of path and body; None: not found


@dataclass
class ScriptedOpenai:
    """Knows `/v1/models`; all else is the script's."""

    script: Script
    scheme: str = "http"
    port: int = 0
    requests: list[tuple[str, Any]] = field(default_factory=list)
    num_connections: int = 0

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                path = head.split()[1]
                length = int(head.split("content-length: ")[1].split("\r\n")[0])
                content = await reader.readexactly(length)
                body = json.loads(content) if content else None
                self.requests.append((path, body))
                if not await self._answer(writer, path, body):
                    break
        writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, path: str, body: Any) -> bool:
        """False: hang up."""
        steps = self.script(path, body)
        if steps is None:
            steps = whole(200, MODELS) if path == "/v1/models" else whole(404, {"error": "no"})
        for step in steps:
            if isinstance(step, bytes):
                writer.write(step)
            elif step == HANG_UP:
                return False
            else:
                await asyncio.sleep(step)
        return True


@contextlib.asynccontextmanager
async def scripted_openai(
    script: Script, tls: ssl.SSLContext | None = None
) -> AsyncIterator[ScriptedOpenai]:
    server = ScriptedOpenai(script, "http" if tls is None else "https")
    listener = await asyncio.start_server(server._serve, "127.0.0.1", 0, ssl=tls)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
