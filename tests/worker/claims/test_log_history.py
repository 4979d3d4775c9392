"""What a resuming worker reads back: exactly what counts before its own claim."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

import worker.claims.log_history
from shared.broker.jetstream import StoredMessage
from shared.errors import BrokerUnavailable
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.log_records import Release
from shared.token_log.fold import RequestFold
from shared.token_log.past_reader import PastReader
from shared.token_log.request_past import RequestPast
from tests.eventually import eventually
from tests.worker.io_stage import Stage, ids, make_claim, make_request, make_rid
from worker.claims.log_history import LogHistory

pytestmark = pytest.mark.integration

STOP = Finish(FinishReason.STOP)


def make_history(stage: Stage, timeout_s: float = 5.0) -> LogHistory:
    return LogHistory(stage.cluster, timeout_s)


async def claim(stage: Stage, rid: str, worker: str, prev: int = 0) -> int:
    return await stage.append(rid, make_claim(make_request(rid), worker, prev))


async def claim_and_read(stage: Stage, history: LogHistory, rid: str) -> RequestFold:
    """Claim after whatever is last, and read the past."""
    records = await stage.records(rid)
    epoch = await claim(stage, rid, "me", records[-1].seq)
    return await history.read(rid, records, epoch)


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> list[PastReader]:
    """Every reader that is opened."""
    opened: list[PastReader] = []

    class Counted(PastReader):
        async def read(self, pasts: Sequence[RequestPast]) -> None:
            opened.append(self)
            await super().read(pasts)

    monkeypatch.setattr(worker.claims.log_history, "PastReader", Counted)
    return opened


async def test_requests_that_ask_at_once_share_a_read(
    stage: Stage, readers: list[PastReader]
) -> None:
    rids = [make_rid(stage.cluster, partition=0) for _ in range(60)]
    for idx, rid in enumerate(rids):
        epoch = await claim(stage, rid, f"dead{idx % 3}")
        await stage.write(f"dead{idx % 3}", rid, epoch, 0, [idx, idx + 1])
    history = make_history(stage)
    folds = await asyncio.gather(*(claim_and_read(stage, history, rid) for rid in rids))
    assert [fold.tokens for fold in folds] == [[idx, idx + 1] for idx in range(60)]
    assert len(readers) <= 10, "not one a request"


async def test_partitions_are_read_side_by_side(stage: Stage, readers: list[PastReader]) -> None:
    rids = [make_rid(stage.cluster, partition) for partition in (0, 1)]
    for rid in rids:
        await stage.write("dead", rid, await claim(stage, rid, "dead"), 0, [1])
    history = make_history(stage)
    folds = await asyncio.gather(*(claim_and_read(stage, history, rid) for rid in rids))
    assert [fold.tokens for fold in folds] == [[1], [1]]
    assert len(readers) == 2


async def test_entries_behind_our_claim_do_not_count(stage: Stage) -> None:
    rid = make_rid(stage.cluster)
    epoch = await claim(stage, rid, "slow")
    await stage.write("slow", rid, epoch, 0, ids("ab"))
    records = await stage.records(rid)
    ours = await claim(stage, rid, "me", epoch)
    await stage.write("slow", rid, epoch, 2, ids("c"), STOP)
    fold = await make_history(stage).read(rid, records, ours)
    assert (fold.tokens, fold.finish) == (ids("ab"), None)


async def test_a_zombies_frames_do_not_count(stage: Stage) -> None:
    rid = make_rid(stage.cluster)
    old = await claim(stage, rid, "zombie")
    await stage.write("zombie", rid, old, 0, ids("ab"))
    new = await claim(stage, rid, "second", old)
    await stage.write("zombie", rid, old, 2, ids("zz"))
    await stage.write("second", rid, new, 0, ids("abc"))
    await stage.write("zombie", rid, old, 2, ids("z"), STOP)
    fold = await claim_and_read(stage, make_history(stage), rid)
    assert (fold.tokens, fold.finish) == (ids("abc"), None)


async def test_the_longest_counted_tokens_are_the_prefix_not_the_newest_epochs(
    stage: Stage,
) -> None:
    rid = make_rid(stage.cluster)
    first = await claim(stage, rid, "first")
    await stage.write("first", rid, first, 0, ids("abcdef"))
    second = await claim(stage, rid, "second", first)
    await stage.write("second", rid, second, 0, ids("abc"))  # died amid restating
    third = await claim(stage, rid, "third", second)  # died before it wrote
    assert third > second
    fold = await claim_and_read(stage, make_history(stage), rid)
    assert fold.tokens == ids("abcdef")


async def test_nothing_counts_between_a_release_and_the_next_claim(stage: Stage) -> None:
    rid = make_rid(stage.cluster)
    epoch = await claim(stage, rid, "w")
    await stage.write("w", rid, epoch, 0, ids("a"))
    await stage.append(rid, Release(epoch, "w", progressed=True))
    await stage.write("w", rid, epoch, 1, ids("b"))
    assert (await claim_and_read(stage, make_history(stage), rid)).tokens == ids("a")


async def test_our_own_earlier_epoch_is_history_too(stage: Stage) -> None:
    rid = make_rid(stage.cluster)
    first = await claim(stage, rid, "me")  # before our engine died
    await stage.write("me", rid, first, 0, ids("ab"))
    released = await stage.append(rid, Release(first, "me", crashed=True))
    records = await stage.records(rid)
    ours = await claim(stage, rid, "me", released)
    await stage.write("me", rid, ours, 0, ids("abc"))  # of the new epoch: not the past
    assert (await make_history(stage).read(rid, records, ours)).tokens == ids("ab")


async def test_a_finish_in_the_past_is_found(stage: Stage) -> None:
    rid = make_rid(stage.cluster)
    epoch = await claim(stage, rid, "dead")
    await stage.write("dead", rid, epoch, 0, ids("ab"), STOP)
    fold = await claim_and_read(stage, make_history(stage), rid)
    assert (fold.tokens, fold.finish) == (ids("ab"), STOP)


async def test_an_unreadable_frame_is_passed_over(stage: Stage) -> None:
    rid = make_rid(stage.cluster)
    epoch = await claim(stage, rid, "dead")
    await stage.write("dead", rid, epoch, 0, ids("a"))
    await stage.cluster.js.publish(stage.cluster.subjects.tokens(0, "dead"), b"\xc1 no frame")
    await stage.write("dead", rid, epoch, 1, ids("b"))
    assert (await claim_and_read(stage, make_history(stage), rid)).tokens == ids("ab")


async def test_two_that_ask_for_one_request_are_both_answered(stage: Stage) -> None:
    """A redelivery may be claimed while the claim of the delivery before it is still out."""
    rid = make_rid(stage.cluster)
    dead = await claim(stage, rid, "dead")
    await stage.write("dead", rid, dead, 0, ids("ab"))
    records = await stage.records(rid)
    first = await claim(stage, rid, "me", dead)
    both = await stage.records(rid)
    second = await claim(stage, rid, "me", first)
    history = make_history(stage)
    # Whoever comes first is alone in its round; the next two share one.
    folds = await asyncio.gather(
        history.read(rid, records, first),
        history.read(rid, records, first),
        history.read(rid, both, second),
    )
    assert [fold.tokens for fold in folds] == [ids("ab")] * 3


async def test_a_reader_that_gives_up_does_not_hold_up_the_others(stage: Stage) -> None:
    rids = [make_rid(stage.cluster, partition=0) for _ in range(3)]
    epochs = []
    for rid in rids:
        dead = await claim(stage, rid, "dead")
        await stage.write("dead", rid, dead, 0, ids("ab"))
        epochs.append(dead)
    history = make_history(stage, timeout_s=30.0)
    readings = []
    for rid in rids:
        records = await stage.records(rid)
        ours = await claim(stage, rid, "me", records[-1].seq)
        readings.append(asyncio.create_task(history.read(rid, records, ours)))
    await asyncio.sleep(0)  # the first reads for itself, the others wait for the second round
    readings[2].cancel()
    async with asyncio.timeout(20):
        assert (await readings[1]).tokens == ids("ab")
        assert (await readings[0]).tokens == ids("ab")


class LaggingReplica:
    """Answers batches as a replica would that has not heard of the last message yet."""

    def __init__(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ask = stage.cluster.js.direct_batch
        self.is_behind = True
        self.num_asked = 0
        monkeypatch.setattr(stage.cluster.js, "direct_batch", self.answer)

    async def answer(self, stream: str, subject: str, seq: int, batch: int) -> list[StoredMessage]:
        self.num_asked += 1
        messages = await self._ask(stream, subject, seq, batch)
        return messages[:-1] if self.is_behind else messages


async def test_a_replica_that_lags_behind_is_not_believed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    rid = make_rid(stage.cluster)
    epoch = await claim(stage, rid, "dead")
    await stage.write("dead", rid, epoch, 0, ids("ab"))
    await stage.write("dead", rid, epoch, 2, ids("c"), STOP)
    replica = LaggingReplica(stage, monkeypatch)
    reading = asyncio.create_task(claim_and_read(stage, make_history(stage), rid))
    await eventually(lambda: replica.num_asked > 1)
    replica.is_behind = False
    fold = await reading
    assert (fold.tokens, fold.finish) == (ids("abc"), STOP)


async def test_a_log_that_cannot_be_read_is_given_up(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    rid = make_rid(stage.cluster)
    await stage.write("dead", rid, await claim(stage, rid, "dead"), 0, ids("ab"))
    LaggingReplica(stage, monkeypatch)
    with pytest.raises(BrokerUnavailable):
        await claim_and_read(stage, make_history(stage, timeout_s=0.2), rid)
