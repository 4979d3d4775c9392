"""`make bench-scale`: how the cost of a token and of a request grows with what there is of each.

A scripted engine. One thing at a time grows by powers of four; told is the CPU time of frontend,
detokenizer, worker I/O and nats-server for a unit of work, and its growth: the exponent `e` of the
best `n ** e`. 0: the whole grows as n does. Above: it grows faster, and something looks at all.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import cyclopts
import uvloop

from bench.local_serve import LocalServe, local_serve
from bench.stream_client import StreamProtocol, http_request, stream_at_once

_TOKENS = ("--scripted", "--scripted-token-low", "300", "--scripted-token-high", "1200")
_SCRIPTED = (*_TOKENS, "--max-running", "8192", "--max-step-tokens", "16384")
_PACED = (*_SCRIPTED, "--scripted-token-s", "0.25")
_FEW_SLOTS = (*_TOKENS, "--max-running", "16")
_SHORT, _LONG = 16, 40  # tokens of an answer
_IDLE_S = 8.0
_SETTLE_S = 8.0


@dataclass(frozen=True)
class Work:
    """Answers that are asked for at once, with keys in turns."""

    num_requests: int
    num_tokens: int
    keys: Sequence[str] = ("none",)

    def payloads(self, port: int) -> list[bytes]:
        body = {
            "model": "jetflock-demo",
            "prompt": "Once upon a time",
            "max_tokens": self.num_tokens,
            "ignore_eos": True,
            "stream": True,
        }
        plain = http_request(port, "/v1/completions", body)
        heads = [f"\r\nAuthorization: Bearer {key}\r\n".encode() for key in self.keys]
        return [
            plain.replace(b"\r\n", head, 1)
            for head in itertools.islice(itertools.cycle(heads), self.num_requests)
        ]

    def do(self, serve: LocalServe) -> dict[str, float]:
        """CPU microseconds by role. Raises SystemExit when an answer is refused or cut."""
        before = serve.cpu_s()
        results = uvloop.run(stream_at_once(serve.port, self.payloads(serve.port), StreamProtocol))
        after = serve.cpu_s()
        if num := sum(each.num_tokens != self.num_tokens for each in results):
            raise SystemExit(f"{num} of {len(results)} answers are not whole")
        return {role: (after[role] - before[role]) * 1e6 for role in after}


Measure = Callable[[int], dict[str, float]]  # of how many, to CPU microseconds a unit, by role


def per_token(flags: Sequence[str], num_requests: int) -> dict[str, float]:
    work = Work(num_requests, _LONG)
    with local_serve(*flags) as serve:
        Work(16, _SHORT).do(serve)
        return _each(work.do(serve), work.num_requests * work.num_tokens)


def per_request(flags: Sequence[str], work: Work) -> dict[str, float]:
    with local_serve(*flags, key=work.keys[0]) as serve:
        Work(16, _SHORT, work.keys).do(serve)
        return _each(work.do(serve), work.num_requests)


def idle(num_workers: int) -> dict[str, float]:
    """A second of doing nothing, of all workers; without their engines."""
    with local_serve(*_SCRIPTED, "--workers", str(num_workers)) as serve:
        time.sleep(_SETTLE_S)
        before = serve.cpu_s()
        time.sleep(_IDLE_S)
        after = serve.cpu_s()
    return {role: (after[role] - before[role]) * 1e6 / _IDLE_S / num_workers for role in after}


def tenants(num: int) -> dict[str, float]:
    keys = [f"sk-tenant-{idx}" for idx in range(num)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "keys.json"
        path.write_text(json.dumps({"keys": [{"name": key, "key": key} for key in keys]}))
        flags = (*_SCRIPTED, "--api-keys-file", str(path))
        return per_request(flags, Work(1024, _SHORT, keys))


def _each(cpu_us: dict[str, float], num: int) -> dict[str, float]:
    return {role: spent / num for role, spent in cpu_us.items()}


AXES: dict[str, tuple[str, Sequence[int], Measure]] = {
    "streams": ("us a token", (16, 64, 256, 1024, 4096), lambda n: per_token(_PACED, n)),
    "workers": (
        "us a token, 16 streams a worker",
        (1, 4, 16),
        lambda n: per_token((*_PACED, "--workers", str(n)), 16 * n),
    ),
    "idle workers": ("us a second and worker", (1, 4, 16), idle),
    "partitions": (
        "us a token of 64 streams",
        (1, 4, 16),
        lambda n: per_token((*_PACED, "--num-partitions", str(n)), 64),
    ),
    "queue": (
        "us a request, 16 slots",
        (64, 256, 1024, 4096),
        lambda n: per_request(_FEW_SLOTS, Work(n, _SHORT)),
    ),
    "tenants": ("us a request", (1, 4, 16, 64), tenants),
}


def growth(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """The exponent of the power of the size that fits these costs of a unit best."""
    fit = statistics.linear_regression(
        [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    )
    return fit.slope


def main(
    only: Annotated[str, cyclopts.Parameter(help="Grow what has this in its name.")] = "",
    repeat: Annotated[int, cyclopts.Parameter(help="Repetitions; the cheapest counts.")] = 1,
) -> None:
    """Measure how cost grows."""
    for name, (unit, sizes, measure) in AXES.items():
        if only not in name:
            continue
        print(f"{name}: {unit}", flush=True)
        costs = []
        for size in sizes:
            rows = [measure(size) for _ in range(repeat)]
            row = min(rows, key=lambda row: sum(row.values()))
            costs.append(sum(row.values()))
            roles = ", ".join(f"{role} {cost:.0f}" for role, cost in row.items())
            print(f"  {size:5}  {costs[-1]:8.0f}  ({roles})", flush=True)
        print(f"  growth of a unit: n ** {growth(sizes, costs):+.2f}", flush=True)


if __name__ == "__main__":
    cyclopts.run(main)
