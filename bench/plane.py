"""`make bench-plane`: what the serving plane adds and costs, with a scripted engine and no model.

Prints, as medians of the repetitions: added time to first token, time per token at 64 streams, CPU
per token, per event and per request, and a second of doing nothing, summed over frontend,
detokenizer, worker I/O and nats-server, throughput as fast as it goes, and the gap that a killed
worker leaves in its streams.

`--peer COMMAND` starts another server with `COMMAND PORT paced|fast`, and measures it in turns.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import cyclopts
import uvloop

from bench.local_serve import LocalServe, local_serve
from bench.plane_target import (
    FLAGS,
    PREFILL_S,
    TOKEN_S,
    ClientKind,
    Pace,
    Target,
    our_stack,
    peer,
    target_of,
)
from bench.stream_client import StreamResult
from jetflock.bench.stage_summary import percentile

NUM_TOKENS = 128
_SHORT = 16  # tokens of an answer whose request is most of its cost
_IDLE_S = 15.0  # of one measurement
_SETTLE_S = 10.0  # after the last request

Row = dict[str, float]


@dataclass(frozen=True)
class Load:
    """So many answers, so many of them at a time."""

    concurrency: int
    num_requests: int
    num_tokens: int = NUM_TOKENS


@dataclass(frozen=True)
class Scenario:
    """A measurement: at which pace the engine runs, and what is asked of the server."""

    name: str
    pace: Pace
    load: Load
    report: Callable[[Run], Row]


@dataclass(frozen=True)
class Run:
    """A load that was served."""

    load: Load
    results: list[StreamResult]
    cpu_s: dict[str, float]  # by part of the server
    elapsed_s: float

    @classmethod
    def of(cls, target: Target, client: ClientKind, load: Load) -> Run:
        before, started = target.cpu_s(), time.perf_counter()
        results = run_streams(target, load, client)
        elapsed_s, after = time.perf_counter() - started, target.cpu_s()
        return cls(load, results, {part: after[part] - before[part] for part in after}, elapsed_s)

    def cost(self) -> Row:
        """CPU by unit of work."""
        num_tokens = sum(result.num_tokens for result in self.results)
        num_events = sum(result.num_events for result in self.results)
        total_us = sum(self.cpu_s.values()) * 1e6
        by_part = {
            f"cpu {part} us/token": cpu_s / num_tokens * 1e6 for part, cpu_s in self.cpu_s.items()
        }
        return {
            "cpu us/token": total_us / num_tokens,
            **(by_part if len(by_part) > 1 else {}),
            "tokens/event": num_tokens / num_events,
            "cpu us/event": total_us / num_events,
            "cpu ms/request": total_us / len(self.results) / 1e3,
        }


def run_streams(target: Target, load: Load, client: ClientKind | None = None) -> list[StreamResult]:
    """Raises AssertionError when a request is refused, or tokens are missing."""
    running = target.run(
        client or ClientKind(), load.num_tokens, load.concurrency, load.num_requests
    )
    results = uvloop.run(running)
    assert all(result.status == 200 for result in results), "a request was refused"
    assert all(result.num_tokens == load.num_tokens for result in results), "tokens are missing"
    return results


def added_ttft(run: Run) -> Row:
    """Beside the engine's own time, which is known of ours alone."""
    added = [(result.ttft_s - PREFILL_S) * 1e3 for result in run.results]
    return {
        "added TTFT p50 ms": statistics.median(added),
        "added TTFT max ms": max(added),
        "time/token p50 ms": statistics.median(result.token_s * 1e3 for result in run.results),
    }


def first_token(run: Run) -> Row:
    """With an engine that takes no time."""
    ttft = [result.ttft_s * 1e3 for result in run.results]
    return {"TTFT p50 ms": statistics.median(ttft), "TTFT p99 ms": percentile(ttft, 99)}


def time_per_token(run: Run) -> Row:
    per_token = [result.token_s * 1e3 for result in run.results]
    gaps = [gap * 1e3 for result in run.results for gap in result.gaps_s]
    return {
        "time/token p50 ms": statistics.median(per_token),
        "time/token p99 ms": percentile(per_token, 99),
        "gap p99 ms": percentile(gaps, 99),
        **run.cost(),
    }


def throughput(run: Run) -> Row:
    num_tokens = sum(result.num_tokens for result in run.results)
    return {
        "tokens/s": num_tokens / run.elapsed_s,
        "requests/s": len(run.results) / run.elapsed_s,
        **first_token(run),
        **run.cost(),
    }


def idle(cpu_s: Callable[[], Mapping[str, float]]) -> Row:
    """What it costs to be there."""
    before, started = cpu_s(), time.perf_counter()
    time.sleep(_IDLE_S)
    elapsed_s, after = time.perf_counter() - started, cpu_s()
    by_part = {f"cpu {part} ms/s": (after[part] - before[part]) / elapsed_s * 1e3 for part in after}
    return {"cpu ms/s": sum(by_part.values()), **by_part}


def killed_worker(serve: LocalServe) -> Row:
    """kill -9 of one of two workers in the middle of 16 streams: the longest gap of each stream."""

    async def measure() -> list[StreamResult]:
        running = asyncio.create_task(target_of(serve).run(ClientKind(), NUM_TOKENS, 16, 16))
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
        Scenario("64 streams at 10 ms per token", "paced", Load(64, 128), time_per_token),
        Scenario("64 streams at 10 ms, 500 tokens", "paced", Load(64, 64, 500), time_per_token),
        Scenario("one stream, as fast as it goes", "fast", Load(1, 40), first_token),
        *(
            Scenario(f"as fast as it goes, {count} streams", "fast", load, throughput)
            for count, load in ((16, Load(16, 192)), (64, Load(64, 256)), (256, Load(256, 1024)))
        ),
        *(
            Scenario(
                f"answers of {_SHORT} tokens, {count} at a time",
                "fast",
                Load(count, num_requests, _SHORT),
                throughput,
            )
            for count, num_requests in ((1, 100), (32, 1000), (256, 2000))
        ),
    ]


_IDLE = "idle"
_ADDED = "one stream"
_KILLED = "kill -9 of a worker"


def main(
    only: Annotated[str, cyclopts.Parameter(help="Run the scenarios whose name has this.")] = "",
    repeat: Annotated[int, cyclopts.Parameter(help="Repetitions; medians are printed.")] = 5,
    peer_command: Annotated[
        str, cyclopts.Parameter("--peer", help="What starts a peer, as `COMMAND PORT paced|fast`.")
    ] = "",
    client: Annotated[
        Literal["ours", "openai"], cyclopts.Parameter(help="The library that sends the requests.")
    ] = "ours",
    acks_at_once: Annotated[
        bool, cyclopts.Parameter(help="Our client sets TCP_QUICKACK; ordinary ones do not.")
    ] = False,
    output: Annotated[Path | None, cyclopts.Parameter(help="Write all rows as JSON.")] = None,
) -> None:
    """Measure the serving plane with a scripted engine."""
    kind = ClientKind(client, acks_at_once)
    rows: dict[str, list[Row]] = {}
    if only in _ADDED and not peer_command:
        rows |= measure_added_ttft(kind, repeat)
    for pace in FLAGS:
        group = [each for each in scenarios() if only in each.name and each.pace == pace]
        if group:
            rows |= measure_in_turns(group, pace, peer_command, kind, repeat)
    if only in _IDLE and not peer_command:
        rows |= measure_idle(kind, repeat)
    if only in _KILLED and not peer_command:
        with local_serve(*FLAGS["paced"], "--workers", "2") as serve:
            rows[_KILLED] = [killed_worker(serve) for _ in range(repeat)]
            print_scenario(_KILLED, rows[_KILLED])
    if output is not None:
        output.write_text(json.dumps(rows, indent=1))


def measure_added_ttft(client: ClientKind, repeat: int) -> dict[str, list[Row]]:
    with our_stack("paced") as target:
        run_streams(target, Load(4, 8), client)  # warm up
        rows = [added_ttft(Run.of(target, client, Load(1, 10))) for _ in range(repeat)]
    print_scenario(_ADDED, rows)
    return {_ADDED: rows}


def measure_idle(client: ClientKind, repeat: int) -> dict[str, list[Row]]:
    """One worker, and two."""
    rows: dict[str, list[Row]] = {}
    for num_workers in (1, 2):
        name = f"{_IDLE}, {num_workers} worker{'s' * (num_workers - 1)}"
        with local_serve(*FLAGS["fast"], "--workers", str(num_workers)) as serve:
            run_streams(target_of(serve), Load(4, 8), client)
            time.sleep(_SETTLE_S)
            rows[name] = [idle(serve.cpu_s) for _ in range(repeat)]
        print_scenario(name, rows[name])
    return rows


def measure_in_turns(
    group: list[Scenario], pace: Pace, peer_command: str, client: ClientKind, repeat: int
) -> dict[str, list[Row]]:
    """Our stack and the peer, if there is one, run all the while and take turns."""
    rows: dict[str, list[Row]] = {}
    with ExitStack() as stack:
        targets = {"jetflock": stack.enter_context(our_stack(pace))}
        if peer_command:
            targets["peer"] = stack.enter_context(peer(peer_command, pace))
        for target in targets.values():
            run_streams(target, Load(4, 8), client)  # warm up
        for scenario in group:
            for name, row in turns(scenario, targets, client, repeat):
                rows.setdefault(f"{scenario.name}: {name}", []).append(row)
            for name in targets:
                title = f"{scenario.name}: {name}"
                print_scenario(title, rows[title])
    return rows


def turns(
    scenario: Scenario, targets: dict[str, Target], client: ClientKind, repeat: int
) -> Iterator[tuple[str, Row]]:
    for _ in range(repeat):
        for name, target in targets.items():
            yield name, scenario.report(Run.of(target, client, scenario.load))


def print_scenario(name: str, rows: list[dict[str, Any]]) -> None:
    print(f"\n{name} (medians of {len(rows)}, range)")
    for key in rows[0]:
        values = [row[key] for row in rows]
        print(
            f"  {key:28} {statistics.median(values):10.2f}   {min(values):.2f} .. {max(values):.2f}"
        )


if __name__ == "__main__":
    cyclopts.run(main)
