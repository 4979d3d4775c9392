"""The log writer against a broker that loses, delays and reorders: the fold never lies."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.nats_client.connection import MIN_MAX_PAYLOAD
from shared.protocol.codec import decode_token_frame
from shared.protocol.finish import Cost, Finish, FinishReason
from shared.protocol.log_records import Claim, TokenEntry
from shared.protocol.logprobs import TokenLogprob, pack_logprobs, record_bytes
from shared.protocol.reply import ReplyParams, Surface, TextParams
from shared.protocol.sealed_replies import seal
from shared.subjects import Subjects
from shared.token_log.fold import RequestFold
from worker.runs.token_log import MAX_ENTRY_TOKENS, PartitionWriter, TokenLog

RID = "0" * 32
EPOCH = 7
FINISH = Finish(FinishReason.STOP)


def make_claim(worker: str) -> Claim:
    reply = seal(ReplyParams("out", Surface.GENERATE, "m", 0, 1, RID))
    return Claim(0, worker, "nonce", 1, "ack", "hash", TextParams(), reply, "pool")


class NoClient:
    """Of NATS: only its inbox is asked for."""

    def new_inbox(self) -> str:
        return "inbox"


class LossyBroker:
    """Stores what arrives; frames and acks may be lost, and frames may arrive late."""

    def __init__(self, rng: random.Random, loss: float) -> None:
        self.stored: list[bytes] = []
        self._rng = rng
        self._loss = loss
        self._late: list[tuple[int, bytes]] = []

    def publish(self, number: int, payload: bytes) -> list[tuple[int, int]]:
        """Returns the acknowledgements (frame number, sequence) that reach the writer."""
        if self._rng.random() < self._loss:
            if self._rng.random() < 0.5:
                self._late.append((number, payload))
            return []
        return self._store(number, payload)

    def deliver_late(self) -> list[tuple[int, int]]:
        late, self._late = self._late, []
        self._rng.shuffle(late)
        return [ack for number, payload in late for ack in self._store(number, payload)]

    def _store(self, number: int, payload: bytes) -> list[tuple[int, int]]:
        self.stored.append(payload)
        return [] if self._rng.random() < self._loss else [(number, EPOCH + len(self.stored))]


def logprobs_of(token_ids: list[int]) -> bytes:
    return pack_logprobs([TokenLogprob(token_id, 1, -0.5) for token_id in token_ids])


def make_entry(truth: list[int], start: int, end: int, finish: Finish | None = None) -> TokenEntry:
    """Of tokens [start, end)."""
    token_ids = truth[start:end]
    prompt_logprobs = b"" if start else b"prompt"
    return TokenEntry(RID, EPOCH, start, token_ids, finish, logprobs_of(token_ids), prompt_logprobs)


def fold_of(stored: list[bytes]) -> RequestFold:
    fold = RequestFold(RID)
    fold.apply_record(EPOCH, make_claim("w"))
    for payload in stored:
        frame = decode_token_frame(payload)
        for entry in frame.entries:
            fold.apply_entry(frame.worker, entry)
    return fold


@settings(max_examples=2 * settings().max_examples, deadline=None)
@given(seed=st.integers(0, 2**32), num_tokens=st.integers(1, 60), loss=st.floats(0, 0.6))
def test_the_fold_is_a_prefix_and_a_confirmed_finish_counts(
    seed: int, num_tokens: int, loss: float
) -> None:
    rng = random.Random(seed)
    confirmed: list[int] = []
    writer = PartitionWriter("w", 3, lambda entry, seq: confirmed.append(seq))
    broker = LossyBroker(rng, loss)
    truth = [rng.randrange(1000) for _ in range(num_tokens)]
    now = 0.0
    num_made = 0
    while not writer.is_flushed or num_made < num_tokens:
        now += 0.6
        if num_made < num_tokens:
            count = min(rng.randrange(1, 4), num_tokens - num_made)
            finish = FINISH if num_made + count == num_tokens else None
            writer.append(make_entry(truth, num_made, num_made + count, finish))
            num_made += count
            if rng.random() < 0.2 and finish is None:
                writer.append(make_entry(truth, 0, num_made))  # a restatement
        acks = broker.deliver_late()
        for overdue in writer.frames_to_resend(now, all_of_them=rng.random() < 0.1):
            acks += broker.publish(overdue.number, overdue.payload)
        while (frame := writer.next_frame(now)) is not None:
            acks += broker.publish(frame.number, frame.payload)
        rng.shuffle(acks)
        for number, seq in acks:
            writer.on_ack(number, seq)
        fold = fold_of(broker.stored)
        assert fold.tokens == truth[: len(fold.tokens)]
        assert fold.logprobs == logprobs_of(fold.tokens)
        assert now < 10_000, "never confirmed"
    assert len(confirmed) == 1
    at_confirmation = fold_of(broker.stored[: confirmed[0] - EPOCH])
    assert at_confirmation.finish == FINISH
    assert at_confirmation.tokens == truth
    assert at_confirmation.prompt_logprobs == b"prompt"


def test_a_frame_is_not_confirmed_by_a_copy_stored_before_its_predecessor() -> None:
    confirmed: list[int] = []
    writer = PartitionWriter("w", 8, lambda entry, seq: confirmed.append(seq))
    writer.append(TokenEntry(RID, EPOCH, 0, [1]))
    first = writer.next_frame(0.0)
    writer.append(TokenEntry(RID, EPOCH, 1, [2], FINISH))
    second = writer.next_frame(0.0)
    assert first is not None
    assert second is not None
    writer.on_ack(second.number, 10)  # the first one was lost on its way
    writer.on_ack(first.number, 11)  # sent again
    assert confirmed == []
    writer.on_ack(second.number, 12)  # sent again too
    assert confirmed == [12]


def test_of_several_copies_the_first_behind_its_predecessor_confirms() -> None:
    writer = PartitionWriter("w", 8, lambda *_: None)
    truth = list(range(3))
    for start in range(3):
        writer.append(make_entry(truth, start, start + 1))
        assert writer.next_frame(0.0) is not None
    writer.on_ack(2, 9)
    writer.on_ack(2, 5)
    writer.on_ack(1, 3)
    assert writer.confirmed_seq == 5
    writer.on_ack(3, 6)
    assert writer.is_flushed


def test_a_step_of_thousands_of_requests_fits_into_messages() -> None:
    """A frame that no server takes would be tried for ever."""
    writer = PartitionWriter("worker-0123456789ab", 100, lambda *_: None)
    cost = Cost(0.1, 2**40, 2**40, 0.1, 2**40, 0.1, 0.1, 0.1, 2**40)
    num_entries = 20_000
    for idx in range(num_entries):
        writer.append(TokenEntry(f"{idx:032x}", 2**40, 100_000, [200_000], FINISH, cost=cost))
    frames = []
    while (frame := writer.next_frame(0.0)) is not None:
        frames.append(frame)
    assert sum(len(frame.finishing) for frame in frames) == num_entries
    assert max(len(frame.payload) for frame in frames) < MIN_MAX_PAYLOAD // 2


def test_a_full_window_merges_what_waits() -> None:
    writer = PartitionWriter("w", 1, lambda entry, seq: None)
    writer.append(TokenEntry(RID, EPOCH, 0, [1]))
    first = writer.next_frame(0.0)
    assert first is not None
    for position in range(1, 5):
        writer.append(TokenEntry(RID, EPOCH, position, [position]))
    assert writer.next_frame(0.0) is None
    writer.on_ack(first.number, 1)
    merged = writer.next_frame(0.0)
    assert merged is not None
    assert decode_token_frame(merged.payload).entries == [TokenEntry(RID, EPOCH, 1, [1, 2, 3, 4])]


def test_an_overdue_frame_is_sent_again_with_all_that_follow_it() -> None:
    writer = PartitionWriter("w", 8, lambda entry, seq: None)
    for position in range(3):
        writer.append(TokenEntry(RID, EPOCH, position, [position]))
        writer.next_frame(0.0)
    writer.on_ack(1, 1)
    writer.on_ack(3, 2)
    assert writer.frames_to_resend(0.5, all_of_them=False) == []
    assert [frame.number for frame in writer.frames_to_resend(1.1, all_of_them=False)] == [2, 3]


@pytest.mark.parametrize("num_tokens", [10, 70_000])
def test_frames_stay_below_the_payload_limit(num_tokens: int) -> None:
    writer = PartitionWriter("w", 8, lambda entry, seq: None)
    for idx in range(3):
        writer.append(TokenEntry(f"{idx:032x}", EPOCH, 0, [2**31] * num_tokens))
    sizes = []
    while (frame := writer.next_frame(0.0)) is not None:
        sizes.append(len(frame.payload))
    assert max(sizes) < 1 << 20
    assert len(sizes) == (1 if num_tokens == 10 else 3)


def test_embeddings_are_spread_over_frames_that_the_broker_takes() -> None:
    writer = PartitionWriter("w1", 100, lambda *_: None)
    embedding = Finish(FinishReason.STOP, embedding=bytes(100_000))
    for idx in range(20):
        writer.append(TokenEntry(f"{idx:032x}", EPOCH, 0, [], embedding))
    sizes = []
    while (frame := writer.next_frame(0.0)) is not None:
        sizes.append(len(frame.payload))
    assert sum(sizes) > 2_000_000
    assert max(sizes) < 500_000
    assert writer.num_pending_tokens == 0


def test_a_finish_without_tokens_counts_as_pending() -> None:
    """An ack that opens the window must send it on."""
    writer = PartitionWriter("w1", 1, lambda *_: None)
    writer.append(TokenEntry(RID, EPOCH, 0, [], FINISH))
    assert writer.num_pending_tokens > 0


def test_frames_with_logprobs_stay_below_the_payload_limit() -> None:
    writer = PartitionWriter("w", 8, lambda entry, seq: None)
    num_tokens = 3000
    for idx in range(3):
        logprobs = bytes(record_bytes(20) * num_tokens)
        writer.append(TokenEntry(f"{idx:032x}", EPOCH, 0, [2**31] * num_tokens, logprobs=logprobs))
    sizes = []
    while (frame := writer.next_frame(0.0)) is not None:
        sizes.append(len(frame.payload))
    assert max(sizes) < 1 << 20
    assert len(sizes) == 3


def test_a_long_restatement_is_cut_with_its_logprobs() -> None:
    log = TokenLog(NoClient(), Subjects("jf", 1), "w", lambda entry, seq: None, max_stall_s=1.0)  # type: ignore[arg-type]
    token_ids = list(range(MAX_ENTRY_TOKENS + 5))
    log.append(TokenEntry(RID, EPOCH, 0, token_ids, None, logprobs_of(token_ids), b"prompt"))
    frame = log._partitions[0].next_frame(0.0)
    assert frame is not None
    fold = fold_of([frame.payload])
    assert fold.tokens == token_ids
    assert fold.logprobs == logprobs_of(token_ids)
    assert fold.prompt_logprobs == b"prompt"
    assert len(decode_token_frame(frame.payload).entries) == 2
