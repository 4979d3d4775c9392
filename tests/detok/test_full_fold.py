"""One request folded from the log alone, while its log changes."""

from __future__ import annotations

import pytest

from detok import full_fold
from detok.full_fold import fold_from_log
from shared.errors import BrokerUnavailable
from shared.protocol.finish import Finish, FinishReason
from shared.token_log.ownership import OwnershipLog, StoredRecord
from tests.detok.scripted import ScriptedWorker, Stage, make_rid

pytestmark = pytest.mark.integration


class Contest:
    """After each reading of the ownership log, another worker claims, and the one that had the
    request, which has not heard of it, writes on.
    """

    def __init__(self, stage: Stage, rid: str, ids: list[int], num_rounds: int) -> None:
        self._stage = stage
        self._rid = rid
        self._ids = ids
        self._num_rounds = num_rounds
        self._writer: ScriptedWorker = stage.worker("first")
        self._epoch = 0

    async def begin(self) -> None:
        self._epoch = await self._writer.claim(self._rid)
        await self._writer.write(self._rid, self._epoch, 0, self._ids)

    async def go_on(self) -> None:
        if not self._num_rounds:
            return
        self._num_rounds -= 1
        fenced, self._writer = self._writer, self._stage.worker("next")
        fenced_epoch, self._epoch = self._epoch, await self._writer.claim(self._rid, self._epoch)
        place = len(self._ids)
        await fenced.write(self._rid, fenced_epoch, place, [0], Finish(FinishReason.LENGTH))
        whole = [*self._ids, 1]
        await self._writer.write(self._rid, self._epoch, 0, whole, Finish(FinishReason.STOP))


def interrupt_readings(monkeypatch: pytest.MonkeyPatch, contest: Contest) -> None:
    read = OwnershipLog.read

    async def then_go_on(self: OwnershipLog, rid: str) -> list[StoredRecord]:
        records = await read(self, rid)
        await contest.go_on()
        return records

    monkeypatch.setattr(OwnershipLog, "read", then_go_on)


@pytest.mark.parametrize("num_rounds", [0, 1, 2])
async def test_a_claim_that_comes_meanwhile_fences_what_follows(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, num_rounds: int
) -> None:
    """The records that were read first say that all of it counts."""
    rid, ids = make_rid(stage.cluster), stage.ids("the quick")
    contest = Contest(stage, rid, ids, num_rounds)
    await contest.begin()
    interrupt_readings(monkeypatch, contest)
    fold = await fold_from_log(stage.cluster, rid)
    assert fold is not None
    assert (fold.tokens, fold.finish) == (
        ([*ids, 1], Finish(FinishReason.STOP)) if num_rounds else (ids, None)
    )


async def test_a_log_that_never_rests_is_not_guessed_at(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    rid = make_rid(stage.cluster)
    contest = Contest(stage, rid, stage.ids("the quick"), 100)
    await contest.begin()
    interrupt_readings(monkeypatch, contest)
    with pytest.raises(BrokerUnavailable, match="kept changing"):
        await fold_from_log(stage.cluster, rid)


async def test_who_has_claimed_and_written_nothing_hides_no_token(stage: Stage) -> None:
    first, second = stage.worker("first"), stage.worker("second")
    rid, ids = make_rid(stage.cluster, partition=1), stage.ids("the quick")
    epoch = await first.claim(rid)
    await first.write(rid, epoch, 0, ids)
    claimed = await second.claim(rid, prev=epoch)
    fold = await fold_from_log(stage.cluster, rid)
    assert fold is not None
    assert (fold.tokens, fold.epoch, fold.writer) == (ids, claimed, second.id)


async def test_a_log_that_cannot_be_read_in_time_is_asked_for_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    rid, worker = make_rid(stage.cluster), stage.worker()
    await worker.write(rid, await worker.claim(rid), 0, stage.ids("the quick"))
    monkeypatch.setattr(full_fold, "_TIMEOUT_S", 0.0)
    with pytest.raises(BrokerUnavailable, match="could not read the log"):
        await fold_from_log(stage.cluster, rid)


async def test_of_what_nobody_has_claimed_or_ended_there_is_nothing(stage: Stage) -> None:
    assert await fold_from_log(stage.cluster, make_rid(stage.cluster)) is None
