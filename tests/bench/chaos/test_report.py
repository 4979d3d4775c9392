"""Which demands a ledger misses, and that ledgers add up."""

from __future__ import annotations

from pathlib import Path

from bench.chaos.ledger import FaultTally, Ledger, RunInfo
from bench.chaos.report import missed_demands, table

RUN = RunInfo("2026-01-01T00:00:00", "python -m bench.chaos", seed=1, seconds=60, ack_wait_s=4)


def ledger(**fields: object) -> Ledger:
    known = {"runs": [RUN], "num_streams": 20, "num_disturbed": 10, "num_generated": 120,
             "num_delivered": 100}  # fmt: skip
    return Ledger(**{**known, **fields})  # type: ignore[arg-type]


def test_all_is_well() -> None:
    tally = FaultTally(num_strikes=1, num_running=10, num_hit=3, recoveries_s=[0.2, 2.9])
    assert missed_demands(ledger(faults={"worker_kill": tally}), 10) == []


def test_what_is_missed_is_named() -> None:
    slow = FaultTally(num_strikes=1, num_running=10, num_hit=3, recoveries_s=[0.2, 3.1])
    missed = missed_demands(
        ledger(violations={"lost": 2}, faults={"worker_kill": slow}, num_generated=131), 11
    )
    assert missed == [
        "2 streams lost",
        "10 streams disturbed, not 11",
        "recovery from worker_kill: p99 3.10 s, allowed 3 s",
        "1.31 tokens generated for each delivered",
    ]


def test_the_wait_for_the_broker_is_allowed_where_it_is_what_ends_the_silence() -> None:
    tally = FaultTally(num_strikes=1, recoveries_s=[6.9])
    assert missed_demands(ledger(faults={"worker_stop": tally})) == []
    assert missed_demands(ledger(faults={"engine_kill": tally})) != []


def test_ledgers_add_up(tmp_path: Path) -> None:
    one = ledger(violations={"lost": 1}, faults={"worker_kill": FaultTally(1, 10, 3, [0.5])})
    total = Ledger.load(tmp_path / "ledger.json")
    total.add(one)
    total.add(ledger(violations={"gap": 2}, faults={"worker_kill": FaultTally(2, 5, 1, [0.7])}))
    total.save(tmp_path / "ledger.json")
    read = Ledger.load(tmp_path / "ledger.json")
    assert read.num_disturbed == 20
    assert read.violations == {"lost": 1, "gap": 2}
    assert read.faults["worker_kill"] == FaultTally(3, 15, 4, [0.5, 0.7])
    assert "20 streams disturbed, of 40; seeds 1, 1" in table(read)
