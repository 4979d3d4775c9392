"""`python -m bench.gpu`: how near the GPU engine comes to what the hardware can do.

Needs torch, triton, a few small packages (bench/gpu/carry.sh brings them to a machine without a
network) and this repository; models have random weights of real shapes. Prints a line of JSON for
each result as it comes; `--json FILE` appends them. A stage that fails or takes too long is told,
and the next one begins.

    python -m bench.gpu --models qwen3-0.6b,qwen3-8b
    python -m bench.gpu --stages environment,decode --models qwen3-8b
    TRITON_INTERPRET=1 python -m bench.gpu --models tiny     # a try on a CPU
"""

from __future__ import annotations

import argparse
import gc
import signal
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path
from types import FrameType

import torch

from bench.gpu.report import Report
from bench.gpu.shapes import SHAPES
from bench.gpu.stages import STAGES, Bench

# On a CPU everything is small, so that a try takes a minute.
_ON_CPU = {"device": "cpu", "num_threads": 1, "max_step_tokens": 64, "num_kv_tokens": 4096}
_ON_GPU = {"device": "cuda", "dtype": "bfloat16", "max_step_tokens": 8192}


class StageOverdue(Exception):
    """Its time is over."""


def main() -> None:
    """Runs the stages that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu")
    parser.add_argument("--models", default="qwen3-0.6b,qwen3-8b", help=", ".join(SHAPES))
    parser.add_argument("--stages", default=",".join(STAGES), help=", ".join(STAGES))
    parser.add_argument("--json", type=Path, help="append the results to this file")
    arguments = parser.parse_args()
    is_gpu = torch.cuda.is_available()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(
            Path(folder),
            Report(arguments.json),
            torch.device("cuda" if is_gpu else "cpu"),
            tuple(arguments.models.split(",")),
            _ON_GPU if is_gpu else _ON_CPU,
        )
        for name in arguments.stages.split(","):
            _run(name, bench)


def _run(name: str, bench: Bench) -> None:
    stage, limit_s = STAGES[name]
    signal.signal(signal.SIGALRM, _on_alarm)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        stage(bench)
    except StageOverdue:
        bench.report.add(name, failed=f"not done in {limit_s:g} s")
    except Exception as exc:  # the next stage may tell something all the same
        traceback.print_exc()
        bench.report.add(name, failed=f"{type(exc).__name__}: {exc}"[:300])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        gc.collect()
        with suppress(RuntimeError):
            torch.cuda.empty_cache()


def _on_alarm(signum: int, frame: FrameType | None) -> None:
    raise StageOverdue


if __name__ == "__main__":
    main()
