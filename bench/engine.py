"""`make bench-engine`: how fast an engine is on this CPU, ours alone or beside its peers.

Token ids in, token ids out, greedy, end-of-text ignored; every engine is a process of its own with
the same weights, prompts and number of threads. Ours is the process that a worker starts, driven
over the same channel. In each round the engines take turns, workload by workload, so that a noisy
neighbour meets all of them; those that wait for their turn are stopped. Each round has prompts of
its own: nothing comes from a prefix cache but what the workload itself shares.

    make bench-engine ARGS='--only W1,W4 --repeats 5'
    for peer in transformers vllm openvino llamacpp; do bench/peers/setup.sh $peer .data/peers; done
    make bench-engine ARGS='--peers transformers,vllm,openvino,llamacpp'
    make bench-engine ARGS='--http --peers vllm'
    make bench-engine ARGS='--gguf Q4_K_M --peers llamacpp --num-threads 1 --only W6,W7'

With --gguf llama.cpp quantises the checkpoint, and both read that file, or ours makes its own codes
with --set quantization=int4; OpenVINO's come by --their-set weights=int4. CPU of a token is exact
on a busy machine with one thread alone: several wait for each other, and turn while they do.

TTFT is counted from the moment all requests are handed over. Peak memory is the resident set of all
processes of an engine. The roofline is explained in bench/roofline.py.
"""

from __future__ import annotations

import fcntl
import json
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

import cyclopts

from bench.checkpoint import ensure_checkpoint
from bench.engine_report import EngineReport
from bench.measurement import Measurement
from bench.model_shape import ModelShape
from bench.peers.peer import PEERS
from bench.peers.runner import UNSEEN, RequestTrace
from bench.roofline import Ceilings
from bench.runner_process import RunnerProcess
from bench.workloads import WORKLOADS, Workload
from shared.gguf.checkpoint_folder import checkpoint_folder

OURS, LLAMACPP = "jetflock", "llamacpp"
HTTP = "_http"  # ends the names of those that are asked over HTTP
DEFAULT_MODEL = Path(".data/bench/llama-135m")
MAX_LEN = 4096
OFFLINE_PEERS = [name for name in PEERS if not name.endswith(HTTP)]
WARM_UP_LEN = 4  # output tokens
WARM_UP_PROMPT_TOKENS = 4096
LOCKED_S = 60.0  # after so long, locks are given up for a moment before the next workload

T = TypeVar("T")


def main(
    *,
    model: Annotated[Path, cyclopts.Parameter(help="Made here unless it exists.")] = DEFAULT_MODEL,
    only: Annotated[str, cyclopts.Parameter(help="Workloads: W1,W4.")] = "",
    peers: Annotated[str, cyclopts.Parameter(help=f"Of {', '.join(OFFLINE_PEERS)}.")] = "",
    http: Annotated[
        bool, cyclopts.Parameter(help="Whole servers, with a streaming client beside them.")
    ] = False,
    peers_dir: Annotated[Path, cyclopts.Parameter(help="Environments of setup.sh.")] = Path(
        ".data/peers"
    ),
    skip: Annotated[str, cyclopts.Parameter(help="Turns to leave out: transformers:W3.")] = "",
    repeats: int = 3,
    num_threads: int = 2,
    gguf: Annotated[
        str, cyclopts.Parameter(help="A file of this kind for all: Q4_K_M, Q8_0.")
    ] = "",
    dtype: str = "bfloat16",
    max_running: Annotated[int, cyclopts.Parameter(help="Requests that run at once.")] = 64,
    set_: Annotated[
        tuple[str, ...],
        cyclopts.Parameter(name="--set", help="Setting of our engine: max_step_tokens=1024."),
    ] = (),
    their_set: Annotated[
        tuple[str, ...], cyclopts.Parameter(help="Setting of the peers: weights=int8.")
    ] = (),
    lock: Annotated[
        tuple[Path, ...], cyclopts.Parameter(help="Files that are locked while it measures.")
    ] = (),
    json_path: Annotated[
        Path | None, cyclopts.Parameter(name="--json", help="Write all rounds as JSON.")
    ] = None,
) -> None:
    """Measure engines on a CPU."""
    ensure_checkpoint(model)
    workloads = chosen_workloads(only)
    ours = OURS + HTTP * http
    names = [ours, *chosen_peers(peers, HTTP * http)]
    skipped = skipped_turns(skip)
    shape = ModelShape.read(model)
    flags = ["--num-threads", str(num_threads), "--dtype", dtype]
    flags += ["--max-running", str(max_running), "--max-len", str(MAX_LEN)]
    theirs = [*their_set, *([f"gguf={gguf}"] if gguf else [])]
    their_flags = [str(model.resolve()), *flags, *(f"--set={setting}" for setting in theirs)]
    bytes_per_value = 2.0 if dtype == "bfloat16" else 4.0
    our_flags = [*flags, *(f"--set={setting}" for setting in set_)]
    print(f"# flags: {' '.join(our_flags)}", flush=True)
    our_model = model.resolve()
    if gguf:
        file = quantized_file(our_model, gguf, peers_dir, their_flags)
        if not any(setting.startswith("quantization=") for setting in set_):
            our_model = checkpoint_folder(file)
        bytes_per_value = file.stat().st_size / shape.num_parameters

    def start(name: str, log_path: Path) -> RunnerProcess:
        if name != ours:
            return PEERS[name].start(peers_dir, their_flags, num_threads, log_path)
        all_flags = [str(our_model), *our_flags]
        return RunnerProcess(
            name, Path(sys.executable), all_flags, {}, log_path, may_suspend=not http
        )

    report = EngineReport(shape, gguf or dtype, bytes_per_value)
    with tempfile.TemporaryDirectory() as logs, ExitStack() as stack:
        engines: list[RunnerProcess] = []
        ceilings: list[Ceilings] = []

        def measure_ceilings() -> None:
            ceilings.append(Ceilings.measure(num_threads, dtype))

        def load(name: str) -> None:
            engine = stack.enter_context(start(name, Path(logs) / f"{name}.log"))
            engine.suspend()
            engines.append(engine)
            report.versions[name], report.load_s[name] = engine.version, engine.load_s
            print(f"# {name} {engine.version} loaded in {engine.load_s:.1f} s", flush=True)

        def turn(round_idx: int, workload: Workload) -> None:
            chosen = [one for one in engines if (one.name, workload) not in skipped]
            if round_idx < 0:
                warm_up(chosen, workload, shape)
            else:
                measure(chosen, workload, shape, str(round_idx), report)

        jobs: list[Callable[[], None]] = [measure_ceilings]
        jobs += [partial(load, name) for name in names]
        jobs += [partial(turn, idx, one) for idx in range(-1, repeats) for one in workloads]
        do_locked(jobs, lock)
    print(report.markdown(ceilings[0]))
    if json_path is not None:
        json_path.write_text(json.dumps(report.to_builtins(ceilings[0]), indent=1) + "\n")


def measure(
    engines: Sequence[RunnerProcess],
    workload: Workload,
    shape: ModelShape,
    seed: str,
    report: EngineReport,
) -> None:
    """One turn of each engine."""
    prompts = workload.prompts(shape.vocab_size, seed)
    first: list[RequestTrace] = []
    for engine in engines:
        begin_cpu_s = engine.cpu_s()
        traces = engine.run(prompts, workload.output_len)
        cpu_s = engine.cpu_s() - begin_cpu_s
        measurement = Measurement.of(workload, traces, engine.peak_bytes(), cpu_s)
        engine.suspend()
        report.add(workload, engine.name, measurement)
        first = first or traces
        if traces is not first and UNSEEN not in traces[0].token_ids:
            report.agreement.setdefault(workload, {})[engine.name] = agreement(first, traces)
        print(f"# {workload.name} {engine.name} {measurement.tokens_per_s:.1f} tok/s", flush=True)


def quantized_file(model: Path, kind: str, peers_dir: Path, their_flags: Sequence[str]) -> Path:
    """That llama.cpp makes of the checkpoint, where it makes it."""
    with tempfile.TemporaryDirectory() as logs:
        PEERS[LLAMACPP].convert(peers_dir, their_flags, Path(logs) / "convert.log")
    return model.with_name(f"{model.name}-bfloat16-{kind}.gguf")


def warm_up(engines: Sequence[RunnerProcess], workload: Workload, shape: ModelShape) -> None:
    """A few steps of as many requests as are quick."""
    num_requests = max(1, WARM_UP_PROMPT_TOKENS // workload.prompt_len)
    prompts = workload.prompts(shape.vocab_size, "warm-up")[:num_requests]
    for engine in engines:
        engine.run(prompts, min(workload.output_len, WARM_UP_LEN))
        engine.suspend()


def agreement(ours: Sequence[RequestTrace], theirs: Sequence[RequestTrace]) -> float:
    """Share of tokens before the first that differs, over all requests."""
    num_same = num_tokens = 0
    for one, other in zip(ours, theirs, strict=True):
        num_tokens += len(one.token_ids)
        for left, right in zip(one.token_ids, other.token_ids, strict=True):
            if left != right:
                break
            num_same += 1
    return num_same / num_tokens


def chosen_workloads(only: str) -> list[Workload]:
    by_name = {workload.name: workload for workload in WORKLOADS}
    return [_look_up(by_name, name, "workload") for name in only.split(",") if name] or list(
        WORKLOADS
    )


def skipped_turns(skip: str) -> set[tuple[str, Workload]]:
    pairs = [turn.partition(":") for turn in skip.split(",") if turn]
    return {(engine, chosen_workloads(name)[0]) for engine, _, name in pairs}


def chosen_peers(peers: str, suffix: str) -> list[str]:
    names = [f"{name}{suffix}" for name in peers.split(",") if name]
    for name in names:
        _look_up(PEERS, name, "peer")
    return names


def _look_up(table: dict[str, T], name: str, what: str) -> T:
    if name not in table:
        raise SystemExit(f"no {what} {name!r}; there are {', '.join(table)}")
    return table[name]


def do_locked(jobs: Sequence[Callable[[], None]], paths: Sequence[Path]) -> None:
    """In order, under exclusive locks, which others may have after every LOCKED_S."""
    left = deque(jobs)
    while left:
        with ExitStack() as locks:
            for path in paths:
                file = locks.enter_context(path.open("a"))
                fcntl.flock(file, fcntl.LOCK_EX)
            release_at = time.monotonic() + LOCKED_S
            while left and time.monotonic() < release_at:
                left.popleft()()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # leave no stopped engine behind
    cyclopts.run(main)
