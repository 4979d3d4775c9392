"""What is told of a run: from readings of one clock, and the engine's own account of its queue."""

from __future__ import annotations

from shared.protocol.finish import RunFacts
from worker.held.run_clock import RunClock


def test_a_run_waits_prefills_and_decodes() -> None:
    clock = RunClock(added_at=10.0)
    clock.begin(1.5)
    clock.begin(4.0)  # it was retracted, and began again
    clock.note_output(13.0, is_last=False)
    clock.note_output(14.0, is_last=False)
    clock.note_output(15.25, is_last=True)
    assert clock.facts(("a", "b")) == RunFacts(("a", "b"), 1.5, 1.5, 2.25)


def test_a_run_of_one_output_decodes_for_no_time() -> None:
    clock = RunClock(added_at=10.0)
    clock.begin(0.1)
    clock.note_output(10.05, is_last=True)  # the engine's clock runs ahead
    assert clock.facts(("a",)) == RunFacts(("a",), 0.1, 0.0, 0.0)
