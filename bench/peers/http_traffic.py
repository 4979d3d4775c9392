"""Runs a workload through an OpenAI-compatible server: streamed completions, a client beside it."""

from __future__ import annotations

from collections.abc import Sequence

import uvloop

from bench.peers.runner import UNSEEN, RequestTrace
from bench.stream_client import StreamProtocol, StreamResult, http_request, stream_at_once


def run_over_http(
    port: int,
    model: str,
    prompts: Sequence[list[int]],
    output_len: int,
    protocol: type[StreamProtocol],
    **fields: object,
) -> list[RequestTrace]:
    """`fields` go into the body of each request."""
    payloads = [
        http_request(
            port,
            "/v1/completions",
            {
                "model": model,
                "prompt": prompt,
                "max_tokens": output_len,
                "temperature": 0.0,
                "ignore_eos": True,
                "stream": True,
                **fields,
            },
        )
        for prompt in prompts
    ]
    results = uvloop.run(stream_at_once(port, payloads, protocol))
    begin = min(result.sent_at for result in results)
    return [_trace(result, begin) for result in results]


def _trace(result: StreamResult, begin: float) -> RequestTrace:
    if result.status != 200:
        raise SystemExit(f"the server answered {result.status}")
    trace = RequestTrace()
    for at, num_tokens in result.arrivals:
        trace.add([UNSEEN] * (num_tokens - len(trace.token_ids)), at - begin)
    return trace
