"""Clients as users have them: SSE streams that are read, cut and resumed."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.e2e.role_stack import MODEL_NAME
from tests.eventually import Looks

TIMEOUT = httpx.Timeout(60.0)
_MOMENT_S = 0.005  # in which a stream does not go far


def http_client() -> httpx.AsyncClient:
    """Without TLS, whose authorities take longer to read than the head of an answer."""
    return httpx.AsyncClient(timeout=TIMEOUT, verify=False)


def completion_body(prompt: str = "Once upon a time", **fields: Any) -> dict[str, Any]:
    return {
        "model": MODEL_NAME,
        "prompt": prompt,
        "max_tokens": 200,
        "ignore_eos": True,
        "stream": True,
        "temperature": 0,
        **fields,
    }


@dataclass
class Stream:
    """What a client has received of one request, over any number of connections."""

    text: str = ""
    last_event_id: str = ""
    finish_reason: str | None = None
    is_done: bool = False
    error: dict[str, Any] | None = None
    arrivals: list[float] = field(default_factory=list)
    num_pings: int = 0  # comments before any text

    @property
    def rid(self) -> str:
        return self.last_event_id.split(".", 1)[0]

    @property
    def position(self) -> int:
        """Output tokens so far."""
        return int(self.last_event_id.split(".")[1]) if self.last_event_id else 0

    @property
    def max_gap_s(self) -> float:
        pairs = zip(self.arrivals, self.arrivals[1:], strict=False)
        return max(later - earlier for earlier, later in pairs)

    async def post(self, url: str, body: dict[str, Any], **headers: str) -> None:
        """Start the request and read until it ends or the connection breaks."""
        async with (
            http_client() as client,
            client.stream("POST", f"{url}/v1/completions", json=body, headers=headers) as response,
        ):
            await self.read(response)

    async def resume(self, url: str) -> None:
        """Go on from the last event on any frontend."""
        async with (
            http_client() as client,
            client.stream(
                "GET",
                f"{url}/v1/streams/{self.rid}",
                headers={"Last-Event-ID": self.last_event_id},
            ) as response,
        ):
            await self.read(response)

    async def wait_for_tokens(self, num_tokens: int, timeout_s: float = 60.0) -> None:
        async for _ in Looks(timeout_s, lambda: f"only {self.position} tokens came", _MOMENT_S):
            if self.position >= num_tokens:
                return

    async def moves(self, for_s: float = 0.5) -> bool:
        """Whether tokens still come."""
        before = self.position
        await asyncio.sleep(for_s)
        return self.position > before

    async def read(self, response: httpx.Response) -> None:
        """The events of an answer, until it ends or the connection breaks."""
        if response.status_code != 200:
            await response.aread()
            raise AssertionError(f"{response.status_code}: {response.text}")
        async for line in response.aiter_lines():
            if line.startswith("id: "):
                self.last_event_id = line[4:]
            elif line == "data: [DONE]":
                self.is_done = True
            elif line.startswith("data: "):
                self._take(json.loads(line[6:]))
            elif line.startswith(": ping"):
                self.num_pings += not self.text

    def _take(self, event: dict[str, Any]) -> None:
        if "error" in event:
            self.error = event["error"]
        for choice in event.get("choices", []):
            if choice["text"]:
                self.arrivals.append(time.monotonic())
            self.text += choice["text"]
            self.finish_reason = choice["finish_reason"] or self.finish_reason


@dataclass
class IdStream:
    """A stream of /generate: the ids themselves."""

    ids: list[int] = field(default_factory=list)
    finish_type: str | None = None
    rid: str = ""

    async def post(self, url: str, seed: int, num_tokens: int) -> None:
        body = {
            "text": "Once upon a time",
            "stream": True,
            "incremental_streaming_output": True,
            "sampling_params": {
                "max_new_tokens": num_tokens,
                "ignore_eos": True,
                "temperature": 0,
                "seed": seed,
            },
        }
        async with (
            http_client() as client,
            client.stream("POST", f"{url}/generate", json=body) as response,
        ):
            await self.read(response)

    async def read(self, response: httpx.Response) -> None:
        """The events of an answer, to its end."""
        assert response.status_code == 200, await response.aread()
        self.rid = response.headers["x-request-id"]
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                self._take(json.loads(line[6:]))

    async def wait_for_ids(self, num_ids: int, timeout_s: float = 30.0) -> None:
        async for _ in Looks(timeout_s, lambda: f"only {len(self.ids)} ids came", _MOMENT_S):
            if len(self.ids) >= num_ids:
                return

    async def wait_for_id_of(self, ids: range, timeout_s: float = 30.0) -> None:
        """Until the worker that makes these ids makes this stream."""
        async for _ in Looks(timeout_s, f"none of {ids} came", _MOMENT_S):
            if self.ids[-1] in ids:
                return

    def _take(self, event: dict[str, Any]) -> None:
        assert "error" not in event, event
        self.ids += event["output_ids"]
        finish = event["meta_info"]["finish_reason"]
        self.finish_type = finish["type"] if finish else None


async def run_stream(url: str, **fields: Any) -> Stream:
    """One undisturbed stream, whole."""
    stream = Stream()
    await stream.post(url, completion_body(**fields))
    assert stream.is_done
    assert stream.error is None
    return stream
