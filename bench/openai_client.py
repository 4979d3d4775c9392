"""The load of `bench.stream_client` sent by OpenAI's own library, which is a client of nobody's."""

from __future__ import annotations

import asyncio
import time

import openai

from bench.stream_client import STORY, StreamResult


class OpenAIClient:
    """Streams chat answers of `num_tokens` tokens, `concurrency` at a time.

    Events are told as tokens while they come: the library does not say how many are in one.
    """

    def __init__(self, port: int, model: str, num_tokens: int) -> None:
        self._url = f"http://127.0.0.1:{port}/v1"
        self._model = model
        self._num_tokens = num_tokens

    async def run(self, concurrency: int, num_requests: int) -> list[StreamResult]:
        """Closed loop: each connection sends its next request when the last one is answered."""
        results: list[StreamResult] = []
        left = num_requests

        async def one_connection(client: openai.AsyncOpenAI) -> None:
            nonlocal left
            while left > 0:
                left -= 1
                results.append(await self._request(client))

        async with openai.AsyncOpenAI(base_url=self._url, api_key="none", max_retries=0) as client:
            await asyncio.gather(*(one_connection(client) for _ in range(concurrency)))
        return results

    async def _request(self, client: openai.AsyncOpenAI) -> StreamResult:
        result = StreamResult(time.perf_counter())
        stream = await client.chat.completions.create(
            model=self._model,
            messages=[{"role": "user", "content": STORY}],
            max_tokens=self._num_tokens,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        async for chunk in stream:
            result.num_events += 1
            if chunk.choices and chunk.choices[0].delta.content:
                result.arrivals.append((time.perf_counter(), len(result.arrivals) + 1))
            if chunk.usage is not None:
                result.num_tokens = chunk.usage.completion_tokens
        result.status, result.ended_at = 200, time.perf_counter()
        return result
