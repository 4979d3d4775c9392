import fcntl
import json
from pathlib import Path

import pytest

from bench.engine import do_locked, main, skipped_turns
from bench.workloads import WORKLOADS

pytestmark = pytest.mark.slow

MODEL = Path("deploy/demo_model/checkpoint").resolve()


@pytest.mark.nightly
def test_a_run_prints_a_table_and_writes_all_rounds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, lock = tmp_path / "out.json", tmp_path / "lock"
    main(
        model=MODEL,
        only="W1",
        repeats=2,
        num_threads=1,
        dtype="float32",
        set_=("max_context_len=512",),
        lock=(lock,),
        json_path=output,
    )
    assert "| jetflock |" in capsys.readouterr().out
    result = json.loads(output.read_text())
    assert len(result["rounds"]["W1"]["jetflock"]) == 2
    assert result["ceilings"]["read_bytes_per_s"] > 1e9


def test_jobs_run_in_order_and_under_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    done = []

    def job(name: str) -> None:
        with path.open("a") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        done.append(name)

    do_locked([lambda: job("one"), lambda: job("two")], [path])
    assert done == ["one", "two"]
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_turns_are_skipped_by_engine_and_workload() -> None:
    assert skipped_turns("vllm:W3,llamacpp:W5") == {
        ("vllm", WORKLOADS[2]),
        ("llamacpp", WORKLOADS[4]),
    }


def test_names_that_nobody_has_are_refused() -> None:
    with pytest.raises(SystemExit, match="no workload 'W9'"):
        skipped_turns("vllm:W9")
    with pytest.raises(SystemExit, match="no peer 'sglang'"):
        main(model=MODEL, peers="sglang")
