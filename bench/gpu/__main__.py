"""`python -m bench.gpu`: how near the GPU engine comes to what the hardware can do.

Models have random weights of real shapes. Each stage of each model is a process with a time limit:
one that fails, hangs or breaks the GPU's context is told, and the next one begins. Prints a line of
JSON for each result as it comes, then goals and tables.

    python -m bench.gpu                                       # what the goals speak of
    python -m bench.gpu --models llama-3.1-8b --stages environment,decode
    python -m bench.gpu --stages environment,decode --engine kv_dtype=fp8
    python -m bench.gpu --budget-s 570 --json results.jsonl --table results.md
    TRITON_INTERPRET=1 python -m bench.gpu --models tiny      # a try on a CPU
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.gpu.backends import BACKENDS, OF_FLASHINFER, may_use_flashinfer
from bench.gpu.goals import goal_results
from bench.gpu.kernel_build import KernelBuild
from bench.gpu.plan import LIMITS_S, plan
from bench.gpu.report import Report
from bench.gpu.shapes import SHAPES
from bench.gpu.table import markdown
from bench.gpu.task import Task
from bench.gpu.task_process import run_task
from bench.gpu.toolkit import build_environment, can_build

MODELS = "qwen3-8b,qwen3-0.6b,qwen3-1.7b"
LEAST_S = 15.0  # no task is begun with less time
BUILD_S = 150.0  # that tasks wait for compiled kernels


def main() -> int:
    """0, or 1 when a task has failed."""
    arguments = _parse(sys.argv[1:])
    engine = dict(arguments.engine)
    tasks = plan(arguments.models, arguments.backends, arguments.stages, engine)
    with tempfile.TemporaryDirectory() as folder:
        report = Report(arguments.json or Path(folder) / "results.jsonl")
        _run_all(tasks, report, arguments.budget_s, Path(folder))
        for result in goal_results(report.results):
            report.add(result)
    command = "python -m bench.gpu " + shlex.join(sys.argv[1:])
    text = markdown(report.results, command.strip())
    print(f"\n{text}")
    if arguments.table is not None:
        arguments.table.write_text(text)
    return int(any("failed" in result for result in report.results))


def _run_all(tasks: Sequence[Task], report: Report, budget_s: float, folder: Path) -> None:
    environment, build = dict(os.environ), None
    with ExitStack() as stack:
        if can_build() and any(may_use_flashinfer(task) for task in tasks):
            environment |= build_environment(folder, environment)
            build = stack.enter_context(KernelBuild(environment))
        for task in tasks:
            if build is not None and may_use_flashinfer(task):
                result = build.result(min(BUILD_S, max(0.0, budget_s - report.elapsed_s)))
                if result is not None:
                    report.add(result)
                    if "failed" in result:  # no task is to compile for minutes
                        environment["FLASHINFER_DISABLE_JIT"] = "1"
            _run(task, report, budget_s, environment)


def _run(task: Task, report: Report, budget_s: float, environment: Mapping[str, str]) -> None:
    left_s = budget_s - report.elapsed_s
    if left_s < LEAST_S:
        failure: str | None = f"not begun: {max(0.0, left_s):.0f} s are left"
    else:
        limit_s = min(task.limit_s, left_s)
        failure = run_task(task, report.path, limit_s, environment, report.add)
    if failure is not None:
        report.add({"stage": task.stage, "task": task.name, "failed": failure})


def _names(known: Collection[str]) -> Callable[[str], list[str]]:
    """Of a flag: words between commas, each one of these."""

    def parse(text: str) -> list[str]:
        words = text.split(",")
        for word in words:
            if word not in known:
                raise argparse.ArgumentTypeError(f"{word!r} is none of {', '.join(known)}")
        return words

    return parse


def _option(text: str) -> tuple[str, Any]:
    """A value is JSON, or the text that it is."""
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu")
    default_backends = ["triton", *(OF_FLASHINFER if can_build() else ())]
    names = f"the first two run all stages, the others decode; of {', '.join(SHAPES)}"
    parser.add_argument("--models", default=MODELS, type=_names(SHAPES), help=names)
    stages = f"of {', '.join(LIMITS_S)}"
    parser.add_argument("--stages", default=",".join(LIMITS_S), type=_names(LIMITS_S), help=stages)
    parser.add_argument("--backends", default=default_backends, type=_names(BACKENDS))
    parser.add_argument(
        "--engine",
        action="append",
        default=[],
        type=_option,
        metavar="NAME=VALUE",
        help="of EngineConfig, for all engines",
    )
    parser.add_argument("--budget-s", default=float("inf"), type=float, help="for all together")
    parser.add_argument("--json", type=Path, help="write the results there, as they come")
    parser.add_argument("--table", type=Path, help="write the tables there, in Markdown")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
