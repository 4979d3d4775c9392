"""Runs a task as a child, reads its results as they come, and ends it when its time is over."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from bench.gpu.task import Task

LAST_WORDS_S = 10.0  # from SIGTERM to SIGKILL: children that it has started are to be ended

Result = dict[str, Any]


def run_task(
    task: Task,
    known: Path,
    limit_s: float,
    environment: Mapping[str, str],
    on_result: Callable[[Result], None],
) -> str | None:
    """None, or why it is not complete. `known` holds the results so far, a line of JSON each."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.gpu.run_task", task.to_json(), str(known)],
        stdout=subprocess.PIPE,
        text=True,
        env=dict(environment),
    )
    assert process.stdout is not None
    is_overdue = threading.Event()
    timer = threading.Timer(limit_s, _end, (process.pid, is_overdue))
    timer.start()
    failure: str | None = None
    try:
        for line in process.stdout:
            result: Result = json.loads(line)
            failure = result.get("failed", failure)
            if "failed" not in result:
                on_result(result)
        status = process.wait()
    finally:
        timer.cancel()
        kill_tree(process.pid)
    if is_overdue.is_set():
        return f"not done in {limit_s:.3g} s"
    if status and failure is None:
        return f"killed by {signal.Signals(-status).name}" if status < 0 else f"status {status}"
    return failure


def _end(pid: int, is_overdue: threading.Event) -> None:
    is_overdue.set()
    try:
        process = psutil.Process(pid)
        process.terminate()
        process.wait(LAST_WORDS_S)
    except psutil.TimeoutExpired:
        kill_tree(pid)
    except psutil.NoSuchProcess:
        return


def kill_tree(pid: int) -> None:
    """With all that it has started. Does nothing to a process that is gone."""
    try:
        process = psutil.Process(pid)
        for child in (*process.children(recursive=True), process):
            child.kill()
    except psutil.NoSuchProcess:
        return
