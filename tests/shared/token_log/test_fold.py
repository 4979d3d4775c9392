"""The fold's promises (I2 to I5, I8 of the protocol) under every fault that writers can make."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.protocol.finish import Finish, FinishReason
from shared.protocol.log_records import End, Release, TokenEntry
from shared.protocol.logprobs import record_bytes
from shared.token_log.fold import NO_EPOCH, RequestFold
from tests.shared.simulated_log import (
    ACTIONS,
    RID,
    LoggedRecord,
    SimulatedLog,
    logprobs_of,
    make_claim,
    next_token,
    simulated_logs,
)


@given(simulated_logs())
def test_each_token_was_made_by_the_owner_of_its_epoch_from_the_tokens_before(
    log: SimulatedLog,
) -> None:
    tokens = log.fold.tokens
    assert len(log.epoch_of_token) == len(tokens)
    for i, epoch in enumerate(log.epoch_of_token):
        assert tokens[i] == next_token(tokens[:i], epoch)


@given(simulated_logs())
def test_tokens_only_grow_and_nothing_changes_after_the_finish(log: SimulatedLog) -> None:
    fold = RequestFold(RID)
    for item in log.items:
        before, finish, epoch = list(fold.tokens), fold.finish, fold.epoch
        if isinstance(item, LoggedRecord):
            fold.apply_record(item.seq, item.record)
        else:
            num_new = fold.apply_entry(item.worker, item.entry)
            assert num_new == len(fold.tokens) - len(before)
            assert not num_new or item.entry.epoch == fold.epoch
        assert fold.tokens[: len(before)] == before
        assert fold.epoch_len <= len(fold.tokens)
        if finish is not None:
            assert (fold.tokens, fold.finish, fold.epoch) == (before, finish, epoch)


@given(simulated_logs())
def test_each_token_has_the_logprobs_that_its_own_epoch_computed(log: SimulatedLog) -> None:
    fold = log.fold
    expected = b"".join(
        logprobs_of(fold.tokens[: i + 1], epoch) for i, epoch in enumerate(log.epoch_of_token)
    )
    assert fold.logprobs == expected
    if fold.tokens:
        assert fold.prompt_logprobs == b"prompt%d" % log.epoch_of_token[0]


@given(simulated_logs())
def test_honest_writers_never_make_the_log_look_damaged(log: SimulatedLog) -> None:
    assert log.fold.finish is None or log.fold.finish.reason is not FinishReason.ERROR


@given(simulated_logs(), st.randoms(use_true_random=False))
def test_a_reader_that_starts_in_the_middle_sees_a_prefix(log: SimulatedLog, random) -> None:  # type: ignore[no-untyped-def]
    start = random.randrange(len(log.items) + 1)
    whole, partial = RequestFold(RID), RequestFold(RID)
    for i, item in enumerate(log.items):
        for fold in [whole, partial] if i >= start else [whole]:
            if isinstance(item, LoggedRecord):
                fold.apply_record(item.seq, item.record)
            else:
                fold.apply_entry(item.worker, item.entry)
        if i < start and isinstance(item, LoggedRecord):
            partial.apply_record(item.seq, item.record)  # the ownership log is always at hand
        assert partial.tokens == whole.tokens[: len(partial.tokens)]
        assert partial.logprobs == whole.logprobs[: len(partial.logprobs)]
        assert len(partial.logprobs) == record_bytes(0) * len(partial.tokens)
        if partial.tokens:
            assert partial.prompt_logprobs == whole.prompt_logprobs


@settings(max_examples=30)
@given(ACTIONS)
def test_a_living_writer_brings_every_token_in(actions: list[tuple[str, int, int]]) -> None:
    log = SimulatedLog()
    log.claim()
    for action in actions:
        if action[0] not in ("end", "finish"):
            log.act(action)
    log.claim()
    writer = log.writers[-1]
    writer.make(3, finish=False, end=log.seq)
    log.act(("lost_step", 0, 2))
    writer.num_sent = 0
    log.act(("finish", 0, 1))
    assert log.fold.tokens == writer.tokens
    assert log.fold.finish == Finish(FinishReason.STOP)


def test_entries_of_another_worker_or_epoch_are_fenced() -> None:
    fold = RequestFold(RID)
    fold.apply_record(5, make_claim(0, "w1"))
    assert fold.apply_entry("w2", TokenEntry(RID, 5, 0, [1])) == 0
    assert fold.apply_entry("w1", TokenEntry(RID, 4, 0, [1])) == 0
    assert fold.num_fenced == 2
    assert fold.apply_entry("w1", TokenEntry(RID, 5, 0, [1])) == 1


def test_an_entry_ahead_of_a_hole_waits_for_the_resend() -> None:
    fold = RequestFold(RID)
    fold.apply_record(5, make_claim(0, "w1"))
    assert fold.apply_entry("w1", TokenEntry(RID, 5, 1, [8])) == 0
    assert fold.num_holes == 1
    assert fold.apply_entry("w1", TokenEntry(RID, 5, 0, [7])) == 1
    assert fold.apply_entry("w1", TokenEntry(RID, 5, 1, [8])) == 1
    assert fold.tokens == [7, 8]


def test_a_new_epoch_counts_from_position_zero_only() -> None:
    fold = RequestFold(RID)
    fold.apply_record(5, make_claim(0, "w1"))
    fold.apply_entry("w1", TokenEntry(RID, 5, 0, [1, 2]))
    fold.apply_record(9, make_claim(5, "w2"))
    assert fold.apply_entry("w2", TokenEntry(RID, 9, 2, [3])) == 0
    assert fold.apply_entry("w2", TokenEntry(RID, 9, 0, [1, 2, 4])) == 1
    assert fold.tokens == [1, 2, 4]


def test_a_finish_counts_only_at_the_end_of_all_tokens() -> None:
    fold = RequestFold(RID)
    fold.apply_record(5, make_claim(0, "w1"))
    fold.apply_entry("w1", TokenEntry(RID, 5, 0, [1, 2, 3]))
    fold.apply_entry("w1", TokenEntry(RID, 5, 0, [1, 2], Finish(FinishReason.LENGTH)))
    assert fold.finish is None
    fold.apply_entry("w1", TokenEntry(RID, 5, 3, [], Finish(FinishReason.STOP)))
    assert fold.finish == Finish(FinishReason.STOP)


def test_other_tokens_at_a_known_position_mean_damage() -> None:
    fold = RequestFold(RID)
    fold.apply_record(5, make_claim(0, "w1"))
    fold.apply_entry("w1", TokenEntry(RID, 5, 0, [1, 2, 3]))
    fold.apply_entry("w1", TokenEntry(RID, 5, 1, [2, 9, 4]))
    assert fold.finish is not None
    assert fold.finish.reason is FinishReason.ERROR
    assert fold.tokens == [1, 2, 3]


@pytest.mark.parametrize(
    "entry",
    [
        TokenEntry(RID, 5, 2, [3]),
        TokenEntry(RID, 5, 2, [3], logprobs=bytes(13)),
        TokenEntry(RID, 5, 2, [3], logprobs=bytes(20)),
        TokenEntry(RID, 5, 2, [3, 4], logprobs=bytes(12)),
        TokenEntry(RID, 5, 2, [], logprobs=bytes(12)),
        TokenEntry(RID, 5, 0, [1, 2, 3], logprobs=b"x" * 36, prompt_logprobs=b"p"),
        TokenEntry(RID, 5, 0, [1, 2], logprobs=bytes(24), prompt_logprobs=b"q"),
    ],
    ids=["none", "odd", "larger", "too few", "no token", "others", "other prompt"],
)
def test_logprobs_that_do_not_fit_mean_damage(entry: TokenEntry) -> None:
    fold = RequestFold(RID)
    fold.apply_record(5, make_claim(0, "w1"))
    first = TokenEntry(RID, 5, 0, [1, 2], logprobs=bytes(24), prompt_logprobs=b"p")
    assert fold.apply_entry("w1", first) == 2
    assert fold.apply_entry("w1", first) == 0
    assert fold.finish is None
    assert fold.apply_entry("w1", entry) == 0
    assert fold.finish is not None
    assert fold.finish.reason is FinishReason.ERROR
    assert (fold.tokens, fold.logprobs, fold.prompt_logprobs) == ([1, 2], bytes(24), b"p")


def test_a_scored_prompt_without_output_finishes_at_position_zero() -> None:
    fold = RequestFold(RID)
    fold.apply_record(5, make_claim(0, "w1"))
    finish = Finish(FinishReason.LENGTH)
    fold.apply_entry("w1", TokenEntry(RID, 5, 0, [], finish, prompt_logprobs=b"p"))
    assert (fold.finish, fold.prompt_logprobs, fold.tokens) == (finish, b"p", [])


def test_a_negative_position_counts_for_nothing() -> None:
    fold = RequestFold(RID)
    fold.apply_record(5, make_claim(0, "w1"))
    fold.apply_entry("w1", TokenEntry(RID, 5, 0, [1, 2, 3]))
    assert fold.apply_entry("w1", TokenEntry(RID, 5, -1, [3, 4])) == 0
    assert fold.tokens == [1, 2, 3]
    assert fold.finish is None


def test_nobody_writes_between_release_and_the_next_claim() -> None:
    fold = RequestFold(RID)
    fold.apply_record(5, make_claim(0, "w1"))
    fold.apply_record(6, Release(5, "w1"))
    assert (fold.epoch, fold.writer) == (NO_EPOCH, "")
    assert fold.apply_entry("w1", TokenEntry(RID, 5, 0, [1])) == 0
    assert fold.apply_entry("", TokenEntry(RID, 0, 0, [1])) == 0
    fold.apply_record(8, make_claim(6, "w1"))
    assert fold.apply_entry("w1", TokenEntry(RID, 8, 0, [1])) == 1


def test_one_other_token_is_damage() -> None:
    fold = RequestFold(RID)
    fold.apply_record(5, make_claim(0, "w1"))
    fold.apply_entry("w1", TokenEntry(RID, 5, 0, [1]))
    fold.apply_record(8, make_claim(5, "w2"))
    assert fold.apply_entry("w2", TokenEntry(RID, 8, 0, [2])) == 0
    assert fold.finish is not None
    assert fold.finish.reason is FinishReason.ERROR


def test_progress_is_what_no_earlier_epoch_had() -> None:
    fold = RequestFold(RID)
    fold.apply_record(5, make_claim(0, "w1"))
    fold.apply_entry("w1", TokenEntry(RID, 5, 0, [1, 2]))
    fold.apply_record(8, make_claim(5, "w2"))
    fold.apply_entry("w2", TokenEntry(RID, 8, 0, [1]))
    fold.apply_entry("w2", TokenEntry(RID, 8, 1, [2]))
    assert fold.progress_epoch == 5
    fold.apply_record(11, make_claim(8, "w3"))
    fold.apply_entry("w3", TokenEntry(RID, 11, 0, [1, 2, 3]))
    assert fold.progress_epoch == 11


def test_an_end_is_the_finish_and_the_first_one_stays() -> None:
    fold = RequestFold(RID)
    fold.apply_record(5, make_claim(0, "w1"))
    fold.apply_record(6, End(5, FinishReason.DEADLINE, "f", "too late"))
    fold.apply_record(7, End(6, FinishReason.CANCEL, "f"))
    assert fold.finish == Finish(FinishReason.DEADLINE, message="too late")


def test_the_first_embedding_counts_and_no_later_one() -> None:
    """Two epochs may compute one that differs in the last bits."""
    fold = RequestFold(RID)
    fold.apply_record(5, make_claim(0, "w1"))
    fold.apply_record(9, make_claim(5, "w2"))
    first, second = (Finish(FinishReason.STOP, embedding=bytes([n])) for n in (1, 2))
    fold.apply_entry("w1", TokenEntry(RID, 5, 0, [], second))  # of a past epoch
    assert fold.finish is None
    fold.apply_entry("w2", TokenEntry(RID, 9, 0, [], first))
    fold.apply_record(12, make_claim(9, "w1"))
    fold.apply_entry("w1", TokenEntry(RID, 12, 0, [], second))
    assert (fold.tokens, fold.finish) == ([], first)
