"""`make bench-fork`: the first new token of a fork, beside the same tokens as a prompt.

A stream of so many output tokens is forked behind them. The same tokens are also sent as a prompt
that no cache has, as one does who keeps a transcript on a plane without forks, and as a prompt that
the prefix cache has. All go on with one seed, one after the other on a service without other work.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import cyclopts
import httpx
import uvloop

from bench.local_serve import local_serve
from jetflock.bench.stage_summary import percentile

PROMPT = "Tell me a story about a dragon."
NEW_TOKENS = 8
ARMS = ("fork", "prompt, cached", "prompt, cold")


class Forks:
    """One source, and what it costs to go on from its tokens."""

    def __init__(self, client: httpx.AsyncClient, model: str, num_tokens: int) -> None:
        self._client = client
        self._model = model
        self._num_tokens = num_tokens
        self._source = ""
        self._token_ids: list[int] = []

    async def make_source(self) -> None:
        body = {**self._body(self._num_tokens + 1), "prompt": PROMPT, "store": True}
        async with self._stream("/v1/completions", body) as events:
            self._source = (await anext(events))[0]
            async for _ in events:
                pass
        prompt = (await self._json("POST", "/tokenize", json={"prompt": PROMPT}))["tokens"]
        output = await self._json("GET", f"/v1/streams/{self._source}/tokens")
        self._token_ids = prompt + output["token_ids"][: self._num_tokens]

    async def ttft_s(self, arm: str, round_number: int) -> float:
        """Until the first token that was not there before."""
        if arm == "fork":
            path, num_before = f"/v1/streams/{self._source}/fork", self._num_tokens
            max_tokens = self._num_tokens + NEW_TOKENS
            sampling = {"seed": round_number, "max_tokens": max_tokens}
            body: dict[str, Any] = {"at": self._num_tokens, "stream": True, "sampling": sampling}
        else:
            path, num_before = "/v1/completions", 0
            body = {**self._body(NEW_TOKENS), "prompt": self._token_ids, "seed": round_number}
            if arm == "prompt, cold":
                body["cache_salt"] = f"round {round_number}"
        sent_at, ttft_s = time.perf_counter(), 0.0
        async with self._stream(path, body) as events:
            async for event_id in events:
                if not ttft_s and int(event_id[1]) > num_before:
                    ttft_s = time.perf_counter() - sent_at
        return ttft_s

    def _body(self, max_tokens: int) -> dict[str, Any]:
        return {
            "model": self._model,
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "temperature": 1,
            "stream": True,
        }

    @asynccontextmanager
    async def _stream(
        self, path: str, body: dict[str, Any]
    ) -> AsyncIterator[AsyncIterator[list[str]]]:
        """The parts of each event id."""
        async with self._client.stream("POST", path, json=body) as response:
            if response.status_code != httpx.codes.OK:
                raise SystemExit(f"{path}: {(await response.aread()).decode()}")
            lines = response.aiter_lines()
            yield (line[4:].split(".") async for line in lines if line.startswith("id: "))

    async def _json(self, method: str, path: str, **options: Any) -> Any:
        response = await self._client.request(method, path, **options)
        if response.status_code != httpx.codes.OK:
            raise SystemExit(f"{path}: {response.text}")
        return json.loads(response.text)


async def measure(port: int, num_tokens: int, repeat: int) -> dict[str, list[float]]:
    ttfts_s: dict[str, list[float]] = {arm: [] for arm in ARMS}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=600) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
        forks = Forks(client, model, num_tokens)
        await forks.make_source()
        for number in range(repeat + 1):
            for arm in ARMS:
                ttft_s = await forks.ttft_s(arm, number)
                if number:  # the first round warms up
                    ttfts_s[arm].append(ttft_s)
    return ttfts_s


def main(
    at: Annotated[int, cyclopts.Parameter(help="Output tokens before the fork.")] = 2000,
    model: Annotated[str, cyclopts.Parameter(help="What is served; the demo model if none.")] = "",
    repeat: Annotated[int, cyclopts.Parameter(help="Rounds of all, in turns.")] = 10,
) -> None:
    """Time to the first new token of a fork."""
    flags = ("--model", model) if model else ()
    with local_serve(*flags, timeout_s=300) as serve:
        ttfts_s = uvloop.run(measure(serve.port, at, repeat))
    print(f"first new token behind {at} tokens, ms, {repeat} rounds")
    for arm, each in ttfts_s.items():
        times = [seconds * 1e3 for seconds in each]
        print(f"{arm:16} p50 {statistics.median(times):8.1f}   p90 {percentile(times, 90):8.1f}")


if __name__ == "__main__":
    cyclopts.run(main)
