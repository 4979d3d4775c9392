"""`make bench-fairness`: does a tenant with few requests wait behind one with many?

A scripted engine with few slots; one tenant sends many requests at once, another one a few, a
moment later. With lanes they have a key each, without lanes they share one, which makes them one
tenant: the queue is then first come, first served. Both are measured in turns, on a fresh stack
each. A waiting time is that from sending a request to its first token.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import cyclopts
import uvloop

from bench.local_serve import local_serve
from bench.stream_client import StreamProtocol, StreamResult, http_request
from jetflock.bench.stage_summary import percentile

NUM_TOKENS = 20
TOKEN_S = 0.010
NUM_SLOTS = 16
DELAY_S = 0.5  # the second tenant comes when the queue is full
SCRIPTED = (
    "--scripted",
    "--scripted-token-low", "300",
    "--scripted-token-high", "1200",
    "--scripted-prefill-s", "0.02",
    "--scripted-token-s", str(TOKEN_S),
    "--max-running", str(NUM_SLOTS),
)  # fmt: skip


@dataclass(frozen=True)
class Crowd:
    """A tenant, and how many requests it sends at once."""

    name: str
    num_requests: int


SCENARIOS = (
    (Crowd("a", 500), Crowd("b", 5)),
    (Crowd("a", 500), Crowd("b", 64)),
    (Crowd("a", 500), Crowd("b", 500)),
)


async def send(port: int, key: str, num_requests: int) -> list[StreamResult]:
    """Over connections that are there already."""
    loop = asyncio.get_running_loop()
    body = {
        "model": "jetflock-demo",
        "prompt": "Once upon a time",
        "max_tokens": NUM_TOKENS,
        "ignore_eos": True,
        "stream": True,
    }
    payload = http_request(port, "/v1/completions", body)
    payload = payload.replace(b"\r\n", f"\r\nAuthorization: Bearer {key}\r\n".encode(), 1)
    connections = [
        await loop.create_connection(StreamProtocol, "127.0.0.1", port) for _ in range(num_requests)
    ]
    try:
        return await asyncio.gather(
            *(protocol.request(transport, payload) for transport, protocol in connections)
        )
    finally:
        for transport, _ in connections:
            transport.close()


async def send_crowds(
    port: int, crowds: Sequence[Crowd], keys: Sequence[str]
) -> dict[str, list[StreamResult]]:
    async def later(idx: int) -> list[StreamResult]:
        await asyncio.sleep(idx * DELAY_S)
        return await send(port, keys[idx], crowds[idx].num_requests)

    results = await asyncio.gather(*(later(idx) for idx in range(len(crowds))))
    return {crowd.name: found for crowd, found in zip(crowds, results, strict=True)}


def measure(crowds: Sequence[Crowd], *, has_lanes: bool) -> dict[str, dict[str, float]]:
    keys = [f"sk-{crowd.name if has_lanes else 'all'}" for crowd in crowds]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "keys.json"
        path.write_text(json.dumps({"keys": [{"name": k, "key": k} for k in sorted(set(keys))]}))
        with local_serve(*SCRIPTED, "--api-keys-file", str(path), key=keys[0]) as serve:
            started = time.perf_counter()
            found = uvloop.run(send_crowds(serve.port, crowds, keys))
            total_s = time.perf_counter() - started
    rows = {}
    for name, results in found.items():
        assert all(result.status == 200 for result in results), "a request was refused"
        assert all(result.num_tokens == NUM_TOKENS for result in results), "tokens are missing"
        waits = [result.ttft_s for result in results]
        span_s = max(r.ended_at for r in results) - min(r.sent_at for r in results)
        rows[name] = {
            "wait p50 s": statistics.median(waits),
            "wait p90 s": percentile(waits, 90),
            "wait max s": max(waits),
            "requests/s": len(results) / span_s,
        }
    num_requests = sum(crowd.num_requests for crowd in crowds)
    return rows | {"all": {"requests/s": num_requests / total_s}}


def main(
    only: Annotated[int | None, cyclopts.Parameter(help="Index of one scenario.")] = None,
    repeat: Annotated[int, cyclopts.Parameter(help="Repetitions; medians are printed.")] = 1,
) -> None:
    """Measure the waiting times of tenants who share a queue."""
    for crowds in SCENARIOS if only is None else (SCENARIOS[only],):
        print("\n" + ", then ".join(f"{crowd.name}: {crowd.num_requests}" for crowd in crowds))
        runs: dict[bool, list[dict[str, dict[str, float]]]] = {False: [], True: []}
        for _ in range(repeat):
            for has_lanes in (False, True):
                runs[has_lanes].append(measure(crowds, has_lanes=has_lanes))
        for has_lanes, found in runs.items():
            for name in found[0]:
                values = ", ".join(
                    f"{key} {statistics.median(run[name][key] for run in found):.2f}"
                    for key in found[0][name]
                )
                print(f"  {'lanes' if has_lanes else 'no lanes':9} {name:4} {values}", flush=True)


if __name__ == "__main__":
    cyclopts.run(main)
