"""Reading back a request's log: the same fold as from its very beginning, of much less."""

from __future__ import annotations

import datetime
import random

from hypothesis import given
from hypothesis import strategies as st

from shared.protocol.finish import Finish, FinishReason
from shared.protocol.log_records import Restatement, TokenEntry, TokenFrame
from shared.token_log.fold import RequestFold
from shared.token_log.ownership import StoredRecord
from shared.token_log.request_past import RequestPast, StoredFrame
from tests.shared.simulated_log import (
    RID,
    LoggedEntry,
    LoggedRecord,
    SimulatedLog,
    make_claim,
    simulated_logs,
)

NOW = datetime.datetime(2027, 1, 1, tzinfo=datetime.UTC)


def records_of(log: SimulatedLog) -> list[StoredRecord]:
    return [
        StoredRecord(item.seq, NOW, item.record)
        for item in log.items
        if isinstance(item, LoggedRecord)
    ]


def frames_of(log: SimulatedLog, worker: str) -> list[StoredFrame]:
    return [
        StoredFrame(item.seq, TokenFrame(worker, 1, [item.entry], item.confirmed_seq))
        for item in log.items
        if isinstance(item, LoggedEntry) and item.worker == worker
    ]


def read_back(past: RequestPast, log: SimulatedLog, max_window: int, rng: random.Random) -> int:
    """In windows of random sizes; returns the lowest sequence that was read."""
    lowest = log.seq + 1
    while (wants := past.wants) is not None:
        start = max(wants.start, wants.end - rng.randint(1, max_window))
        frames = frames_of(log, wants.worker)
        past.add([one for one in frames if start <= one.seq < wants.end], start)
        lowest = min(lowest, start)
    return lowest


@given(simulated_logs(), st.integers(1, 6), st.randoms(use_true_random=False))
def test_the_fold_is_that_of_the_whole_log(
    log: SimulatedLog, max_window: int, rng: random.Random
) -> None:
    past = RequestPast(RID, records_of(log), log.seq + 1)
    read_back(past, log, max_window, rng)
    fold = past.fold()
    assert (fold.tokens, fold.logprobs) == (log.fold.tokens, log.fold.logprobs)
    assert fold.finish == log.fold.finish
    if fold.tokens:
        assert fold.prompt_logprobs == log.fold.prompt_logprobs
    if fold.finish is None:
        assert fold.progress_epoch == log.fold.progress_epoch


def entry(
    epoch: int, position: int, ids: str, restates: int | None = None, **facts: int
) -> TokenEntry:
    told = None if restates is None else Restatement(restates, **{**PLAIN, **facts})
    return TokenEntry(RID, epoch, position, [ord(char) for char in ids], restates=told)


PLAIN = {"num_prefix": 0, "progress_epoch": 0}


def make_log(*items: LoggedRecord | LoggedEntry) -> SimulatedLog:
    return SimulatedLog(list(items), seq=items[-1].seq)


def make_past(log: SimulatedLog) -> RequestPast:
    return RequestPast(RID, records_of(log), log.seq + 1)


def claim(seq: int, worker: str, prev: int = 0) -> LoggedRecord:
    return LoggedRecord(seq, make_claim(prev, worker))


def text_of(fold: RequestFold) -> str:
    return "".join(map(chr, fold.tokens))


def test_what_is_before_the_last_restatement_is_not_read() -> None:
    log = make_log(
        claim(1, "w"),
        LoggedEntry(2, "w", entry(1, 0, "a", 1), 0),
        LoggedEntry(3, "w", entry(1, 1, "b"), 2),
        LoggedEntry(4, "w", entry(1, 0, "ab", 2), 3),
        LoggedEntry(5, "w", entry(1, 2, "c"), 4),
    )
    past = make_past(log)
    assert read_back(past, log, 1, random.Random(0)) == 4
    assert text_of(past.fold()) == "abc"


def test_a_restatement_that_was_cut_off_does_not_hide_what_was_before() -> None:
    log = make_log(
        claim(1, "first"),
        LoggedEntry(2, "first", entry(1, 0, "abcdef", 6), 0),
        claim(3, "second", 1),
        LoggedEntry(4, "second", entry(3, 0, "abc", 6, num_prefix=6, progress_epoch=1), 0),
    )
    past = make_past(log)
    read_back(past, log, 1, random.Random(0))
    assert text_of(past.fold()) == "abcdef"


def test_a_late_copy_of_a_restatement_does_not_hide_what_was_written_after_it() -> None:
    restated = entry(1, 0, "ab", 2)
    log = make_log(
        claim(1, "w"),
        LoggedEntry(2, "w", restated, 0),
        LoggedEntry(3, "w", entry(1, 2, "c"), 0),
        LoggedEntry(4, "w", restated, 0),  # resent; its worker died before it resent "c"
    )
    past = make_past(log)
    read_back(past, log, 1, random.Random(0))
    assert text_of(past.fold()) == "abc"


def test_what_stands_right_behind_the_confirmed_frame_is_read() -> None:
    log = make_log(
        claim(1, "w"),
        LoggedEntry(2, "w", entry(1, 0, "ab", 2), 0),
        LoggedEntry(3, "w", entry(1, 2, "c"), 2),  # the frame before it was lost
        LoggedEntry(4, "w", entry(1, 0, "ab", 2), 2),  # resent; its worker died before "c"
    )
    past = make_past(log)
    read_back(past, log, 1, random.Random(0))
    assert text_of(past.fold()) == "abc"


def test_late_entries_of_its_writers_earlier_epoch_make_nobody_read_further() -> None:
    log = make_log(
        claim(1, "w"),
        LoggedEntry(2, "w", entry(1, 0, "abcd", 4), 0),
        claim(3, "w", 1),
        LoggedEntry(4, "w", entry(3, 0, "abcd", 4, num_prefix=4, progress_epoch=1), 2),
        LoggedEntry(5, "w", entry(1, 4, "xyz"), 2),
        LoggedEntry(6, "w", entry(3, 4, "e"), 2),
    )
    past = make_past(log)
    assert read_back(past, log, 1, random.Random(0)) == 4
    assert text_of(past.fold()) == "abcde"


def test_a_frame_that_names_another_worker_counts_for_nobody() -> None:
    log = make_log(claim(1, "w"), LoggedEntry(2, "w", entry(1, 0, "ab", 2), 0))
    past = make_past(log)
    forged = StoredFrame(3, TokenFrame("v", 1, [entry(1, 2, "zz")], 0))
    past.add([*frames_of(log, "w"), forged], 2)
    assert text_of(past.fold()) == "ab"


def test_an_entry_ahead_of_a_restatement_that_came_in_pieces_is_not_lost() -> None:
    """In the whole log it has counted where it stands; behind the restatement it is a hole."""
    log = make_log(
        claim(1, "w"),
        LoggedEntry(2, "w", entry(1, 0, "abcd", 4), 0),
        LoggedEntry(3, "w", entry(1, 0, "ab", 4), 2),
        LoggedEntry(4, "w", entry(1, 4, "e"), 2),  # the second piece was lost before it
        LoggedEntry(5, "w", entry(1, 2, "cd"), 2),
    )
    past = make_past(log)
    read_back(past, log, 1, random.Random(0))
    assert text_of(past.fold()) == "abcde"


def test_restating_is_no_progress() -> None:
    """Whoever dies after it has died under a request that did not move."""
    log = make_log(
        claim(1, "first"),
        LoggedEntry(2, "first", entry(1, 0, "ab", 2), 0),
        claim(3, "second", 1),
        LoggedEntry(4, "second", entry(3, 0, "ab", 2, num_prefix=2, progress_epoch=1), 0),
        claim(5, "third", 3),
    )
    past = make_past(log)
    assert read_back(past, log, 1, random.Random(0)) == 4
    assert past.fold().progress_epoch == 1


def test_a_writer_that_does_not_say_what_it_restates_is_read_from_its_first_claim_on() -> None:
    log = make_log(
        claim(1, "w"),
        LoggedEntry(2, "w", entry(1, 0, "ab"), 0),
        LoggedEntry(3, "w", entry(1, 0, "ab"), 0),
    )
    past = make_past(log)
    assert read_back(past, log, 1, random.Random(0)) == 2
    assert text_of(past.fold()) == "ab"


def test_a_finish_that_does_not_fit_yet_is_looked_for_further_back() -> None:
    finish = TokenEntry(RID, 1, 2, [], Finish(FinishReason.STOP))
    log = make_log(
        claim(1, "w"),
        LoggedEntry(2, "w", entry(1, 0, "ab", 2), 0),
        LoggedEntry(3, "w", entry(1, 0, "a", 2), 2),
        LoggedEntry(4, "w", finish, 2),
        LoggedEntry(5, "w", entry(1, 1, "b"), 2),
    )
    past = make_past(log)
    read_back(past, log, 1, random.Random(0))
    fold = past.fold()
    assert (text_of(fold), fold.finish) == ("ab", Finish(FinishReason.STOP))
