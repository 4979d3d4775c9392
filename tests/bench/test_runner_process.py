import sys
from pathlib import Path

import pytest

from bench.runner_process import RunnerProcess

MODEL = Path("deploy/demo_model/checkpoint").resolve()


def start(log_path: Path, *flags: str) -> RunnerProcess:
    settings = ("--dtype", "float32", "--max-len", "256", *flags)
    return RunnerProcess("jetflock", Path(sys.executable), [str(MODEL), *settings], {}, log_path)


def test_our_engine_runs_requests_and_tells_when_each_token_came(tmp_path: Path) -> None:
    prompts = [[300, 301, 302], [400, 401, 402, 403]]
    with start(tmp_path / "log") as engine:
        traces = engine.run(prompts, 6)
        alone = engine.run(prompts[1:], 6)
        peak_bytes = engine.peak_bytes()
    assert engine.load_s > 0
    assert [len(trace.token_ids) for trace in traces] == [6, 6]
    assert all(trace.times_s == sorted(trace.times_s) for trace in traces)
    assert all(0 < trace.times_s[0] < trace.times_s[-1] for trace in traces)
    assert alone[0].token_ids == traces[1].token_ids
    assert peak_bytes > 50 << 20  # an engine has loaded torch


def test_a_runner_that_dies_shows_why(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no setting 'warp'"):
        start(tmp_path / "log", "--set", "warp=9")
