"""`python -m tests.simulation`: many schedules, or one with its trace."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing.connection import Connection

from tests.simulation.house import house
from tests.simulation.simulation import Simulation, Verdict, run_seed, unheard_ends

_BATCH = 250
_IN_ONE_PROCESS = 50  # what they leave behind is never collected: 30 MB


def main() -> int:
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets of names are walked in the same order
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this schedule alone")
    parser.add_argument("--trace", action="store_true", help="print what happens in it")
    parser.add_argument("--num", type=int, default=1000, help="how many schedules")
    parser.add_argument("--first", type=int, default=0, help="the first of their seeds")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes to use")
    args = parser.parse_args()
    if args.seed is not None:
        verdict = run_seed(args.seed, trace=args.trace)
        print(verdict.report())
        return 0 if verdict.is_good else 1
    return _run_many(args.first, args.num, args.jobs)


def _run_many(first: int, num: int, jobs: int) -> int:
    began = time.perf_counter()
    bad: list[int] = []
    total = Totals()
    with ProcessPoolExecutor(jobs, initializer=_warm_up) as pool:
        starts = range(first, first + num, _BATCH)
        batches = [
            pool.submit(run_batch, start, min(_BATCH, first + num - start)) for start in starts
        ]
        for batch in as_completed(batches):
            part, failures = batch.result()
            total += part
            for seed, violations in failures:
                bad.append(seed)
                print(f"seed {seed}: {violations[0]}", flush=True)
    print(total.describe(time.perf_counter() - began))
    if bad:
        print(f"{len(bad)} bad schedules; --seed {min(bad)} --trace shows one")
    return 1 if bad else 0


class Totals:
    """What many schedules came to."""

    def __init__(self) -> None:
        self.num_schedules = 0
        self.num_requests = 0
        self.num_claims = 0
        self.num_messages = 0
        self.simulated_s = 0.0
        self.cpu_s = 0.0
        self.faults: Counter[str] = Counter()

    def add(self, verdict: Verdict) -> None:
        self.num_schedules += 1
        self.num_requests += verdict.num_accepted
        self.num_claims += verdict.num_claims
        self.num_messages += verdict.num_messages
        self.simulated_s += verdict.simulated_s
        self.faults += verdict.faults

    def __iadd__(self, other: Totals) -> Totals:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)
        return self

    def describe(self, wall_s: float) -> str:
        faults = ", ".join(f"{kind} {count}" for kind, count in self.faults.most_common())
        per_ms = 1000 * self.cpu_s / max(1, self.num_schedules)
        return (
            f"{self.num_schedules} schedules, {self.num_requests} requests, {self.num_claims} "
            f"claims, {self.num_messages} messages, {self.simulated_s / 3600:.1f} simulated hours; "
            f"{self.cpu_s:.0f} s of CPU ({per_ms:.1f} ms each), {wall_s:.0f} s\n"
            f"{self.faults.total()} faults: {faults}"
        )


Batch = tuple[Totals, list[tuple[int, list[str]]]]


def _warm_up() -> None:
    """What is made once is made before the processes of the schedules begin."""
    for num_partitions in (1, 2):
        house(num_partitions)


def run_batch(first: int, num: int) -> Batch:
    """Some schedules, and the violations of the bad ones."""
    total, failures = Totals(), []
    for start in range(first, first + num, _IN_ONE_PROCESS):
        part, bad = _in_child(start, min(_IN_ONE_PROCESS, first + num - start))
        total += part
        failures += bad
    return total, failures


def _in_child(first: int, num: int) -> Batch:
    """In a process of their own, whose end is cheaper than to collect what they leave behind."""
    forks = multiprocessing.get_context("fork")
    receiver, sender = forks.Pipe(duplex=False)
    child = forks.Process(target=_run_and_exit, args=(sender, first, num))
    child.start()
    sender.close()
    batch: Batch = receiver.recv()
    child.join()
    return batch


def _run_and_exit(sender: Connection, first: int, num: int) -> None:
    total, failures = Totals(), []
    began = time.process_time()
    with unheard_ends():
        for seed in range(first, first + num):
            verdict = Simulation(seed).run()
            total.add(verdict)
            if not verdict.is_good:
                failures.append((verdict.seed, verdict.violations))
        total.cpu_s = time.process_time() - began
        sender.send((total, failures))
        os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
