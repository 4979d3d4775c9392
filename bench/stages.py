"""`python -m bench.stages`: how busy the stages of a model are, on this CPU, with a thread each.

A trace of prompts of several lengths goes through one process, then through stages. Of each stage
is told its CPU time as a share of the trace's wall time: what waits takes none. The last stage also
plans and chooses. Something else that runs on the same cores makes shares smaller.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Annotated

import cyclopts
import psutil

from bench.checkpoint import ensure_checkpoint
from bench.engine import DEFAULT_MODEL, MAX_LEN
from bench.model_shape import ModelShape
from bench.peers.jetflock_runner import JetflockRunner
from bench.peers.runner import RunnerSettings

SEED = 1
PROMPT_LENS = (16, 192)
WARM_UP_LEN = 4


def main(
    *,
    model: Annotated[Path, cyclopts.Parameter(help="Made here unless it exists.")] = DEFAULT_MODEL,
    stages: int = 2,
    dtype: str = "float32",
    requests: int = 64,
    at_once: Annotated[int, cyclopts.Parameter(help="Requests that run at once.")] = 16,
    output_len: int = 48,
) -> None:
    """Measure the stages of a model."""
    ensure_checkpoint(model)
    drawn = random.Random(SEED)
    vocab_size = ModelShape.read(model).vocab_size
    prompts = [
        [drawn.randrange(vocab_size) for _ in range(drawn.randint(*PROMPT_LENS))]
        for _ in range(requests)
    ]
    for num_stages in (1, stages):
        settings = RunnerSettings(
            model=str(model.resolve()),
            num_threads=1,
            dtype=dtype,
            max_running=at_once,
            max_len=MAX_LEN,
            kv_gib=1,
            convert=False,
            extra={"device": "cpu", "pp": str(num_stages), "cpu_kernels": "torch"},
        )
        runner = JetflockRunner(settings)
        runner.run(prompts[:1], WARM_UP_LEN)
        last = psutil.Process(runner.pid)
        processes = [*last.children(), last]
        before = [_cpu_s(each) for each in processes]
        begin_s = time.perf_counter()
        runner.run(prompts, output_len)
        wall_s = time.perf_counter() - begin_s
        shares = [
            (_cpu_s(process) - cpu_s) / wall_s
            for process, cpu_s in zip(processes, before, strict=True)
        ]
        runner.close()
        busy = ", ".join(f"{share:.1%}" for share in shares)
        rate = requests * output_len / wall_s
        print(f"pp={num_stages}: {rate:.1f} tokens/s in {wall_s:.1f} s; busy: {busy}", flush=True)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


if __name__ == "__main__":
    cyclopts.run(main)
