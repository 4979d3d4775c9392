"""`make bench-plane`: what the serving plane adds and costs, with a scripted engine and no model.

Prints, as medians of the repetitions: added time to first token, time per token at 64 streams, CPU
per token summed over frontend, detokenizer, worker I/O and nats-server, throughput as fast as it
goes, and the gap that a killed worker leaves in its streams.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import cyclopts
import uvloop

from bench.local_serve import ROLES, LocalServe, local_serve
from bench.stream_client import StreamClient, StreamResult
from jetflock.bench.stage_summary import percentile

MODEL = "jetflock-demo"
NUM_TOKENS = 128
PREFILL_S = 0.020
TOKEN_S = 0.010
SCRIPTED = (
    "--scripted",
    "--scripted-token-low", "300",
    "--scripted-token-high", "1200",
    "--max-running", "256",
    "--max-step-tokens", "512",
)  # fmt: skip
PACED = (*SCRIPTED, "--scripted-prefill-s", str(PREFILL_S), "--scripted-token-s", str(TOKEN_S))

Row = dict[str, float]


@dataclass(frozen=True)
class Scenario:
    """A measurement: how the stack is started, and what is done to it."""

    name: str
    flags: tuple[str, ...]
    measure: Callable[[LocalServe], Row]


def run_streams(serve: LocalServe, concurrency: int, num_requests: int) -> list[StreamResult]:
    client = StreamClient(serve.port, MODEL, NUM_TOKENS)
    results = uvloop.run(client.run(concurrency, num_requests))
    assert all(result.status == 200 for result in results), "a request was refused"
    assert all(result.num_tokens == NUM_TOKENS for result in results), "tokens are missing"
    return results


def with_cpu(
    serve: LocalServe, concurrency: int, num_requests: int
) -> tuple[list[StreamResult], Row, float]:
    """Run streams; also the CPU microseconds per token by role, and the seconds it took."""
    before, started = serve.cpu_s(), time.perf_counter()
    results = run_streams(serve, concurrency, num_requests)
    elapsed_s = time.perf_counter() - started
    after = serve.cpu_s()
    num_tokens = num_requests * NUM_TOKENS
    cpu = {role: (after[role] - before[role]) / num_tokens * 1e6 for role in ROLES}
    row = {"cpu us/token": sum(cpu.values())}
    row |= {f"cpu {role} us/token": value for role, value in cpu.items()}
    return results, row, elapsed_s


def one_stream(serve: LocalServe) -> Row:
    results = run_streams(serve, concurrency=1, num_requests=10)
    added = [(result.ttft_s - PREFILL_S) * 1e3 for result in results]
    return {
        "added TTFT p50 ms": statistics.median(added),
        "added TTFT max ms": max(added),
        "time/token p50 ms": statistics.median(result.token_s * 1e3 for result in results),
    }


def many_streams(serve: LocalServe) -> Row:
    results, row, _ = with_cpu(serve, concurrency=64, num_requests=128)
    gaps = [gap * 1e3 for result in results for gap in result.gaps_s]
    per_token = [result.token_s * 1e3 for result in results]
    return {
        "time/token p50 ms": statistics.median(per_token),
        "time/token p99 ms": percentile(per_token, 99),
        "gap p99 ms": percentile(gaps, 99),
        **row,
    }


def saturated(concurrency: int) -> Callable[[LocalServe], Row]:
    def measure(serve: LocalServe) -> Row:
        num_requests = 4 * concurrency if concurrency >= 64 else 12 * concurrency
        results, row, elapsed_s = with_cpu(serve, concurrency, num_requests)
        return {
            "tokens/s": len(results) * NUM_TOKENS / elapsed_s,
            "requests/s": len(results) / elapsed_s,
            **row,
        }

    return measure


def killed_worker(serve: LocalServe) -> Row:
    """kill -9 of one of two workers in the middle of 16 streams: the longest gap of each stream."""

    async def measure() -> list[StreamResult]:
        client = StreamClient(serve.port, MODEL, NUM_TOKENS)
        running = asyncio.create_task(client.run(16, 16))
        await asyncio.sleep(0.5)
        serve.role_processes("worker")[0].kill()
        return await running

    results = uvloop.run(measure())
    assert all(result.num_tokens == NUM_TOKENS for result in results), "tokens are missing"
    gaps = [max(result.gaps_s) for result in results]
    hit = [gap for gap in gaps if gap > 5 * TOKEN_S]
    time.sleep(2)  # the supervisor starts another worker meanwhile: let it load
    return {
        "streams hit": len(hit),
        "gap p50 s": statistics.median(hit) if hit else 0.0,
        "gap max s": max(gaps),
    }


def scenarios() -> list[Scenario]:
    return [
        Scenario("one stream", PACED, one_stream),
        Scenario("64 streams at 10 ms per token", PACED, many_streams),
        *(
            Scenario(f"as fast as it goes, {count} streams", SCRIPTED, saturated(count))
            for count in (16, 64, 256)
        ),
        Scenario("kill -9 of a worker", (*PACED, "--workers", "2"), killed_worker),
    ]


def main(
    only: Annotated[str, cyclopts.Parameter(help="Run the scenarios whose name has this.")] = "",
    repeat: Annotated[int, cyclopts.Parameter(help="Repetitions; medians are printed.")] = 5,
    output: Annotated[Path | None, cyclopts.Parameter(help="Write all rows as JSON.")] = None,
) -> None:
    """Measure the serving plane with a scripted engine."""
    chosen = [scenario for scenario in scenarios() if only in scenario.name]
    rows: dict[str, list[Row]] = {}
    by_flags: dict[tuple[str, ...], list[Scenario]] = {}
    for scenario in chosen:
        by_flags.setdefault(scenario.flags, []).append(scenario)
    for flags, group in by_flags.items():
        with local_serve(*flags) as serve:
            run_streams(serve, concurrency=4, num_requests=8)  # warm up
            for scenario in group:
                rows[scenario.name] = [scenario.measure(serve) for _ in range(repeat)]
                print_scenario(scenario.name, rows[scenario.name])
    if output is not None:
        output.write_text(json.dumps(rows, indent=1))


def print_scenario(name: str, rows: list[dict[str, Any]]) -> None:
    print(f"\n{name} (medians of {len(rows)}, range)")
    for key in rows[0]:
        values = [row[key] for row in rows]
        print(
            f"  {key:28} {statistics.median(values):10.2f}   {min(values):.2f} .. {max(values):.2f}"
        )


if __name__ == "__main__":
    cyclopts.run(main)
