"""How many messages of the log a resuming worker reads, whatever its length."""

from __future__ import annotations

import datetime

import pytest

from shared.protocol.codec import decode_token_frame, encode_token_frame
from shared.protocol.log_records import TokenEntry, TokenFrame
from shared.protocol.logprobs import TokenLogprob, pack_logprobs
from shared.subjects import LANES
from shared.token_log.past_reader import PastReader
from shared.token_log.request_past import RequestPast
from tests.eventually import eventually_async
from tests.worker.io_stage import Stage, make_claim, make_request, make_rid
from worker.engine_link.engine_messages import RunOutput
from worker.held.delivery import Delivery
from worker.held.held_request import HeldRequest, HoldState
from worker.runs.token_log import parts_of

pytestmark = pytest.mark.integration

NUM_NEIGHBOURS = 64
NUM_TOP = 2
_WINDOW = 8  # frames that are on their way at most
_FIRST_WINDOW = 64
_FLUSH_EVERY = 500


class FrameWriter:
    """Writes frames of one worker behind its claim. Nobody else writes meanwhile: so the place of
    each is known without an answer.
    """

    def __init__(self, stage: Stage, partition: int, worker: str, claim_seq: int) -> None:
        self.worker = worker
        self._cluster = stage.cluster
        self._subject = stage.cluster.subjects.tokens(partition, worker)
        self._claim_seq = claim_seq
        self.num_written = 0

    async def write(self, entries: list[TokenEntry]) -> None:
        self.num_written += 1
        num_confirmed = max(0, self.num_written - 1 - _WINDOW)
        confirmed_seq = self._claim_seq + num_confirmed if num_confirmed else 0
        frame = TokenFrame(self.worker, self.num_written, entries, confirmed_seq)
        await self._cluster.nc.publish(self._subject, encode_token_frame(frame))
        if self.num_written % _FLUSH_EVERY == 0:
            await self._cluster.nc.flush()

    async def until_stored(self) -> None:
        """And at the places that frames have told."""
        last_seq = self._claim_seq + self.num_written

        async def is_stored() -> bool:
            stream = self._cluster.subjects.tokens_stream
            last = await self._cluster.js.get_last(stream, self._subject)
            return last is not None and last.seq >= last_seq

        await eventually_async(is_stored, 60)
        stored = await self._cluster.js.get_at(self._cluster.subjects.tokens_stream, last_seq)
        assert stored is not None
        assert decode_token_frame(stored.data).number == self.num_written


class LongRun:
    """A request that ran for many steps, beside others, at workers that are dead now."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.rid = make_rid(stage.cluster)
        self.request = make_request(self.rid)
        self.partition = stage.cluster.subjects.partition(self.rid)
        self.num_needed = 0  # the last whole restatement, and frames of its claimers behind it
        self._neighbours = [
            TokenEntry(make_rid(stage.cluster), 1, 1000, [7]) for _ in range(NUM_NEIGHBOURS)
        ]

    async def claimed(self, worker: str) -> tuple[HeldRequest, FrameWriter]:
        records = await self.stage.records(self.rid)
        prev = records[-1].seq if records else 0
        epoch = await self.stage.append(self.rid, make_claim(self.request, worker, prev))
        delivery = Delivery(b"", "ack", 1, 1, datetime.datetime.now(datetime.UTC), "", LANES[0], 0)
        held = HeldRequest(self.request, delivery, None, HoldState.RUNNING, epoch=epoch)
        return held, FrameWriter(self.stage, self.partition, worker, epoch)

    async def run(self, num_steps: int) -> HeldRequest:
        """A token a step, with logprobs, as `Runs` writes them."""
        held, writer = await self.claimed("dead")
        for step in range(num_steps):
            record = pack_logprobs([_logprob(step)])
            held.accept(RunOutput(1, [step % 900], logprobs=record), None)
            entry = held.next_entry(0.0)
            assert entry is not None
            await writer.write([entry, *self._neighbours])
            self.num_needed += 1
            if held.is_restatement_due(held.restated_at):
                parts = list(parts_of(held.restate(held.restated_at)))
                self.num_needed = len(parts)
                for part in parts:
                    await writer.write([part])
        await writer.until_stored()
        return held

    async def die_restating(self, worker: str, before: HeldRequest) -> None:
        """Claim, and tell one half of what there is."""
        held, writer = await self.claimed(worker)
        held.tokens, held.logprobs = before.tokens, before.logprobs
        whole = held.next_entry(0.0)
        assert whole is not None
        num_emitted = len(whole.token_ids) // 2
        parts = [
            part for part in parts_of(whole) if part.position + len(part.token_ids) <= num_emitted
        ] or [_beginning(whole, num_emitted)]
        for part in parts:
            await writer.write([part, *self._neighbours])
        await writer.until_stored()
        self.num_needed += len(parts)

    async def read_back(self) -> tuple[RequestPast, int]:
        """By a worker that claims now; with the number of messages read."""
        records = await self.stage.records(self.rid)
        claim = make_claim(self.request, "me", records[-1].seq)
        ours = await self.stage.append(self.rid, claim)
        cluster = self.stage.cluster
        partition = cluster.subjects.partition(self.rid)
        reader = PastReader(cluster.js, cluster.subjects, partition, cluster.malformed)
        past = RequestPast(self.rid, records, ours)
        await reader.read([past])
        return past, reader.num_messages


@pytest.mark.parametrize(
    ("num_steps", "num_died"),
    [
        (200, 0),  # ten seconds at 20 steps a second
        (200, 3),
        (3_000, 3),
        pytest.param(12_000, 3, marks=pytest.mark.nightly),  # ten minutes
        pytest.param(144_000, 3, marks=[pytest.mark.slow, pytest.mark.nightly]),  # two hours
    ],
)
async def test_no_more_than_twice_what_is_needed_is_read(
    stage: Stage, num_steps: int, num_died: int
) -> None:
    """Also behind epochs that died in the middle of their restatement."""
    run = LongRun(stage)
    held = await run.run(num_steps)
    for idx in range(num_died):
        await run.die_restating(f"dead-{idx}", held)
    past, num_messages = await run.read_back()
    fold = past.fold()
    assert fold.tokens == held.tokens
    assert fold.logprobs == held.logprobs
    assert num_messages <= 2 * run.num_needed + _FIRST_WINDOW
    print(f"{num_steps} steps: {num_messages} read, {run.num_needed} needed")


async def test_a_writer_that_fell_silent_long_ago_is_found_at_once(stage: Stage) -> None:
    """What others have written since then is not read, nor searched."""
    run = LongRun(stage)
    held = await run.run(1000)
    subjects = stage.cluster.subjects
    other = subjects.tokens(subjects.partition(run.rid), "other")
    for idx in range(20_000):
        await stage.cluster.nc.publish(other, b"x" * 50)
        if idx % _FLUSH_EVERY == 0:
            await stage.cluster.nc.flush()
    await stage.cluster.nc.flush()
    past, num_messages = await run.read_back()
    assert past.fold().tokens == held.tokens
    assert num_messages <= 2 * run.num_needed + _FIRST_WINDOW


def _logprob(step: int) -> TokenLogprob:
    top = tuple((idx, -0.25 * idx) for idx in range(NUM_TOP))
    return TokenLogprob(step % 900, 1, -0.5, top)


def _beginning(whole: TokenEntry, num_tokens: int) -> TokenEntry:
    """The first piece of a restatement, as a writer with smaller pieces cuts it."""
    size = len(whole.logprobs) // len(whole.token_ids)
    return TokenEntry(
        whole.rid,
        whole.epoch,
        0,
        whole.token_ids[:num_tokens],
        logprobs=whole.logprobs[: num_tokens * size],
        restates=whole.restates,
    )
