import sys
from pathlib import Path

import pytest

from bench.peers.runner import UNSEEN
from bench.runner_process import RunnerProcess
from tests.forked_program import call_forked

pytestmark = pytest.mark.e2e

NUM_TOKENS = 60  # so many do not come in one piece, however busy the machine is
MODEL = Path("deploy/demo_model/checkpoint").resolve()


def start(log_path: Path, *flags: str, name: str = "jetflock") -> RunnerProcess:
    settings = ("--dtype", "float32", "--max-len", "256", *flags)
    return RunnerProcess(name, Path(sys.executable), [str(MODEL), *settings], {}, log_path)


def test_our_engine_runs_requests_and_tells_when_each_token_came(tmp_path: Path) -> None:
    call_forked(run_requests, tmp_path / "log", timeout_s=100)


def run_requests(log_path: Path) -> None:
    prompts = [[300, 301, 302], [400, 401, 402, 403]]
    with start(log_path) as engine:
        traces = engine.run(prompts, 6)
        alone = engine.run(prompts[1:], 6)
        peak_bytes = engine.peak_bytes()
    assert engine.load_s > 0
    assert [len(trace.token_ids) for trace in traces] == [6, 6]
    assert all(trace.times_s == sorted(trace.times_s) for trace in traces)
    assert all(0 < trace.times_s[0] < trace.times_s[-1] for trace in traces)
    assert alone[0].token_ids == traces[1].token_ids
    assert peak_bytes > 50 << 20  # an engine has loaded torch


def test_an_engine_that_was_suspended_runs_again(tmp_path: Path) -> None:
    call_forked(suspend_and_run, tmp_path / "log", timeout_s=100)


def suspend_and_run(log_path: Path) -> None:
    with start(log_path) as engine:
        engine.suspend()
        assert len(engine.run([[300, 301]], 3)[0].token_ids) == 3
        engine.suspend()  # it must also end when it is stopped


@pytest.mark.e2e
@pytest.mark.nightly
def test_the_whole_stack_runs_requests_over_http(tmp_path: Path) -> None:
    with start(tmp_path / "log", name="jetflock_http") as stack:
        traces = stack.run([[300, 301, 302], [400, 401, 402, 403]], NUM_TOKENS)
    assert [trace.token_ids for trace in traces] == [[UNSEEN] * NUM_TOKENS] * 2
    assert all(0 < trace.times_s[0] < trace.times_s[-1] for trace in traces)


def test_a_runner_that_dies_shows_why(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no setting 'warp'"):
        start(tmp_path / "log", "--set", "warp=9")
