"""The protocol between the engine benchmark and the program that runs one engine.

A runner is a process: `python -m bench.peers.NAME_runner MODEL --num-threads 2 ...`, in the
environment of that engine; so this file needs nothing but the standard library. On its stdout:

    {"version": "..."}                      when the engine can take requests
    {"requests": [[[id, ...], [s, ...]]]}   after each run: ids, and the second at which each came,
                                            counted from the moment the requests were handed over

and on its stdin, one line a run: {"prompts": [[id, ...], ...], "output_len": 128}. The end of stdin
ends it. Whatever else the engine's libraries print goes to stderr.

With --convert it only writes the checkpoint in the engine's own format, where it has one, beside
the checkpoint, and ends.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

UNSEEN = -1  # id of a token of which only the text came


@dataclass(slots=True)
class RequestTrace:
    """The output of one request."""

    token_ids: list[int] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)  # since the run began, one a token

    def add(self, token_ids: list[int], at_s: float) -> None:
        self.token_ids += token_ids
        self.times_s += [at_s] * len(token_ids)


class Stopwatch:
    """Seconds since a run began."""

    def __init__(self) -> None:
        self.begin = time.perf_counter()

    def __call__(self) -> float:
        return time.perf_counter() - self.begin


class Runner(Protocol):
    """A loaded engine."""

    version: str

    def run(self, prompts: list[list[int]], output_len: int) -> list[RequestTrace]:
        """Greedy, all prompts at once, `output_len` tokens each; in the order of the prompts."""
        ...

    def close(self) -> None:
        """Ends the processes that it has started."""
        ...


@dataclass(frozen=True, slots=True)
class RunnerSettings:
    """What every runner is told."""

    model: str  # folder of the checkpoint
    num_threads: int
    dtype: str  # "bfloat16" or "float32"
    max_running: int  # requests that run at once, at most
    max_len: int  # of prompt and output
    kv_gib: int  # memory for keys and values
    convert: bool  # do nothing else
    extra: dict[str, str]  # settings of this engine alone

    def converted(self, suffix: str) -> Path:
        """Where the checkpoint lies in another format."""
        path = Path(self.model)
        return path.with_name(f"{path.name}-{self.dtype}{suffix}")

    @classmethod
    def from_args(cls) -> RunnerSettings:
        parser = argparse.ArgumentParser()
        parser.add_argument("model")
        parser.add_argument("--num-threads", type=int, default=2)
        parser.add_argument("--dtype", default="bfloat16")
        parser.add_argument("--max-running", type=int, default=64)
        parser.add_argument("--max-len", type=int, default=4096)
        parser.add_argument("--kv-gib", type=int, default=1)
        parser.add_argument("--convert", action="store_true")
        parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
        args = parser.parse_args()
        extra = dict(item.split("=", 1) for item in args.set)
        return cls(
            args.model,
            args.num_threads,
            args.dtype,
            args.max_running,
            args.max_len,
            args.kv_gib,
            args.convert,
            extra,
        )


def serve(
    load: Callable[[RunnerSettings], Runner],
    convert: Callable[[RunnerSettings], None] = lambda _: None,
) -> None:
    """The whole program: load, then a run for each line of stdin."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def reply(message: dict[str, object]) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    settings = RunnerSettings.from_args()
    if settings.convert:
        convert(settings)
        return
    runner = load(settings)
    try:
        reply({"version": runner.version})
        for line in sys.stdin:
            job = json.loads(line)
            traces = runner.run(job["prompts"], job["output_len"])
            reply({"requests": [[trace.token_ids, trace.times_s] for trace in traces]})
    finally:
        runner.close()
