"""A result fits the broker, however long it is, and is written until it is stored."""

from __future__ import annotations

import asyncio
import datetime

import msgspec
import nats.errors
import pytest
from nats.aio.msg import Msg

from detok import done_writer
from detok.decode_status import DecodeStatus
from detok.detok_stats import DetokStats
from detok.done_writer import DoneWriter, done_of
from detok.replay_service import read_done
from shared.broker import piece_chain
from shared.broker.jetstream import PubAck, StoredMessage
from shared.broker.piece_chain import PieceChain
from shared.errors import BrokerError, BrokerUnavailable, CasConflict, LimitReached
from shared.nats_client.connection import round_trip
from shared.protocol.codec import decode, encode
from shared.protocol.finish import Beam, Finish, FinishReason, RunFacts
from shared.protocol.log_records import Claim, End, TokenEntry
from shared.protocol.notices import TenantCost
from shared.protocol.reply import ReplyParams, SealedReply, Surface, TextParams
from shared.protocol.sealed_replies import seal
from shared.protocol.token_ids import unpack_token_ids
from shared.subjects import Subjects
from tests.detok.scripted import Stage, running_detok, wait_for_done
from tests.eventually import eventually_async
from tests.stream_limits import set_limit

RID = "0" * 32
FINISH = Finish(FinishReason.LENGTH)
REPLY = seal(ReplyParams("s", Surface.CHAT, "m", 0, 1, RID))


class FakeJetStream:
    def __init__(self, *outcomes: Exception | None, stored_seq: int | Exception = 0) -> None:
        self.outcomes = list(outcomes)
        self.published: list[tuple[str, int | None]] = []
        self._stored_seq = stored_seq  # of the last message there, or why nobody can tell

    async def publish(self, subject: str, payload: bytes, *, expected_last: int) -> PubAck:
        self.published.append((subject, expected_last))
        outcome = self.outcomes.pop(0)
        if outcome is not None:
            raise outcome
        return PubAck(seq=1)

    async def get_next(self, _stream: str, subject: str, seq: int) -> StoredMessage | None:
        if isinstance(self._stored_seq, Exception):
            raise self._stored_seq
        if self._stored_seq < seq:
            return None
        now = datetime.datetime.now(datetime.UTC)
        return StoredMessage(subject, self._stored_seq, b"of another writer", now)


class FakeCluster:
    def __init__(self, js: FakeJetStream) -> None:
        self.js = js
        self.nc = self
        self.max_payload = 1 << 20
        self.subjects = Subjects()
        self.costs: list[TenantCost] = []
        self.cost_error: Exception | None = None

    async def publish(self, subject: str, data: bytes) -> None:
        assert subject == self.subjects.costs
        if self.cost_error is not None:
            raise self.cost_error
        self.costs.append(decode(TenantCost, data))


@pytest.mark.parametrize(
    ("outcomes", "num_written"),
    [
        ([None], 1),
        ([CasConflict("taken")], 0),
        ([BrokerUnavailable("away"), BrokerError("full", 10077), None], 1),
        ([BrokerUnavailable("away"), CasConflict("it was stored")], 0),
        ([nats.errors.ConnectionClosedError(), OSError("no route"), None], 1),
    ],
)
async def test_until_it_is_stored(
    monkeypatch: pytest.MonkeyPatch, outcomes: list[Exception | None], num_written: int
) -> None:
    monkeypatch.setattr(done_writer, "_RETRY_S", 0.001)
    status = DecodeStatus(RID, 1)
    status.apply_record(1, End(0, FinishReason.CANCEL, "f"))
    js, stats = FakeJetStream(*outcomes), DetokStats()
    await DoneWriter(FakeCluster(js), stats).write(status)  # type: ignore[arg-type]
    assert js.published == [(f"jf.done.{RID}", 0)] * len(outcomes)
    assert stats.done_written == num_written


@pytest.mark.parametrize("outcome", [None, CasConflict("the response was deleted")])
async def test_a_kept_response_gets_its_result_behind_its_record(outcome: Exception | None) -> None:
    status = DecodeStatus(RID, 1)
    reply = seal(ReplyParams("s", Surface.RESPONSES, "m", 0, 1, RID, kept_at=7))
    status.apply_record(1, End(0, FinishReason.CANCEL, "f", reply=reply))
    js, stats = FakeJetStream(outcome, None), DetokStats()
    await DoneWriter(FakeCluster(js), stats).write(status)  # type: ignore[arg-type]
    assert js.published == [(f"jf.resp.{RID}", 7), (f"jf.done.{RID}", 0)]
    assert stats.done_written == 1


@pytest.mark.parametrize(
    "away", [BrokerUnavailable("no leader"), nats.errors.TimeoutError(), OSError("no route")]
)
async def test_a_store_of_responses_that_is_away_does_not_hold_up_a_result(
    monkeypatch: pytest.MonkeyPatch, away: Exception
) -> None:
    monkeypatch.setattr(done_writer, "_RETRY_S", 0.001)
    status = DecodeStatus(RID, 1)
    reply = seal(ReplyParams("s", Surface.RESPONSES, "m", 0, 1, RID, kept_at=7))
    status.apply_record(1, End(0, FinishReason.CANCEL, "f", reply=reply))
    js = FakeJetStream(away, None, away, None)
    await DoneWriter(FakeCluster(js), DetokStats()).write(status)  # type: ignore[arg-type]
    response, done = (f"jf.resp.{RID}", 7), (f"jf.done.{RID}", 0)
    assert js.published == [response, done, response, response]


def finished_status(
    num_tokens: int, reply: SealedReply = REPLY, finish: Finish = FINISH
) -> DecodeStatus:
    status = DecodeStatus(RID, 1)
    claim = Claim(0, "w", "n", 1, "ack", "hash", TextParams(), reply, "pool")
    status.apply_record(1, claim)
    token_ids = [(1 << 20) + idx for idx in range(num_tokens)]
    status.apply_entry(2, "w", TokenEntry(RID, 1, 0, token_ids, finish))
    return status


FULL = LimitReached("maximum bytes exceeded")


@pytest.mark.parametrize(
    ("stored_seq", "outcomes"),
    [
        (3, [FULL]),  # another has stored it
        (0, [FULL, None]),
        (BrokerUnavailable("away"), [FULL, None]),
    ],
)
async def test_a_full_stream_is_asked_whether_the_result_is_there(
    monkeypatch: pytest.MonkeyPatch, stored_seq: int | Exception, outcomes: list[Exception | None]
) -> None:
    """Servers may say that it is full before they say that the record is there."""
    monkeypatch.setattr(done_writer, "_RETRY_S", 0.001)
    js, stats = FakeJetStream(*outcomes, stored_seq=stored_seq), DetokStats()
    await DoneWriter(FakeCluster(js), stats).write(finished_status(5))  # type: ignore[arg-type]
    assert len(js.published) == len(outcomes)
    assert stats.done_written == len(outcomes) - 1


@pytest.mark.parametrize(("stored_seq", "num_tries"), [(7, 3), (8, 2)])
async def test_the_record_of_a_response_is_not_its_result(
    monkeypatch: pytest.MonkeyPatch, stored_seq: int, num_tries: int
) -> None:
    monkeypatch.setattr(done_writer, "_RETRY_S", 0.001)
    reply = seal(ReplyParams("s", Surface.RESPONSES, "m", 0, 1, RID, kept_at=7))
    js = FakeJetStream(FULL, None, FULL, None, stored_seq=stored_seq)
    cluster = FakeCluster(js)
    await DoneWriter(cluster, DetokStats()).write(finished_status(5, reply))  # type: ignore[arg-type]
    assert js.published.count((f"jf.resp.{RID}", 7)) == num_tries


def test_a_result_has_all_that_the_log_told_of_it() -> None:
    status = DecodeStatus(RID, 1)
    claim = Claim(0, "w", "n", 1, "ack", "hash", TextParams(), REPLY, "pool")
    status.apply_record(1, claim)
    status.apply_entry(2, "w", TokenEntry(RID, 1, 0, [5, 6], FINISH, b"abcd", b"prompt"))
    done = done_of(status)
    assert (done.rid, unpack_token_ids(done.token_ids), done.finish) == (RID, [5, 6], FINISH)
    assert (done.logprobs, done.prompt_logprobs, done.reply) == (b"abcd", b"prompt", REPLY)


@pytest.mark.parametrize(
    "stored",
    [
        b"\xc1 not MessagePack",
        encode(done_of(finished_status(5))),  # of a request that is no response
        encode(msgspec.structs.replace(done_of(finished_status(5)), reply=None)),
    ],
)
async def test_only_responses_are_kept(stored: bytes) -> None:
    js = FakeJetStream()
    await DoneWriter(FakeCluster(js), DetokStats()).keep_done(RID, stored)  # type: ignore[arg-type]
    assert js.published == []


BEAMS = (Beam(bytes(4 * 3), -1.0, FinishReason.STOP), Beam(bytes(4 * 2), -2.0, FinishReason.STOP))


@pytest.mark.parametrize(
    ("owner", "num_tokens", "beams", "costs"),
    [
        ("o", 0, BEAMS, [TenantCost("o", 5)]),
        ("o", 4, (), [TenantCost("o", 4)]),
        ("o", 0, (), []),
        ("", 4, (), []),
    ],
)
async def test_all_output_has_its_price_and_nothing_else(
    owner: str, num_tokens: int, beams: tuple[Beam, ...], costs: list[TenantCost]
) -> None:
    reply = seal(ReplyParams("s", Surface.CHAT, "m", 0, 1, RID, owner=owner))
    status = finished_status(num_tokens, reply, Finish(FinishReason.LENGTH, beams=beams))
    cluster = FakeCluster(FakeJetStream(None))
    await DoneWriter(cluster, DetokStats()).write(status)  # type: ignore[arg-type]
    assert cluster.costs == costs


async def test_what_a_fork_was_given_has_no_price() -> None:
    reply = seal(ReplyParams("s", Surface.CHAT, "m", 0, 1, RID, owner="o"))
    finish = Finish(FinishReason.LENGTH, run=RunFacts(num_given=3))
    cluster = FakeCluster(FakeJetStream(None))
    await DoneWriter(cluster, DetokStats()).write(finished_status(5, reply, finish))  # type: ignore[arg-type]
    assert cluster.costs == [TenantCost("o", 2)]


async def test_a_price_that_nobody_hears_holds_up_nothing() -> None:
    reply = seal(ReplyParams("s", Surface.CHAT, "m", 0, 1, RID, owner="o"))
    cluster, stats = FakeCluster(FakeJetStream(None)), DetokStats()
    cluster.cost_error = nats.errors.ConnectionClosedError()
    await DoneWriter(cluster, stats).write(finished_status(5, reply))  # type: ignore[arg-type]
    assert stats.done_written == 1


@pytest.mark.integration
async def test_a_result_of_many_tokens_is_stored_in_pieces(stage: Stage) -> None:
    status = finished_status(400_000)
    await DoneWriter(stage.cluster, DetokStats()).write(status)
    done = await read_done(stage.cluster, RID)
    assert done == done_of(status)
    assert unpack_token_ids(done.token_ids) == status.fold.tokens


@pytest.mark.integration
async def test_a_successor_stores_the_pieces_that_are_missing(stage: Stage) -> None:
    status = finished_status(600_000)
    cluster = stage.cluster
    subject = cluster.subjects.done(RID)
    pieces = piece_chain._cut(encode(done_of(status)), piece_chain._ROOM_BYTES)
    await cluster.js.publish(subject, pieces[0], expected_last=0)
    assert await read_done(cluster, RID) is None, "not before all of it is there"
    writers = [DoneWriter(cluster, DetokStats()) for _ in range(2)]
    await asyncio.gather(*(writer.write(status) for writer in writers))
    assert await read_done(cluster, RID) == done_of(status)
    stored = [m async for m in cluster.js.direct_scan(cluster.subjects.results_stream, subject)]
    assert [message.data for message in stored] == pieces


@pytest.mark.integration
async def test_a_response_that_was_deleted_amid_its_pieces_does_not_come_back(
    stage: Stage,
) -> None:
    cluster = stage.cluster
    stream, subject = cluster.subjects.responses_stream, cluster.subjects.response(RID)
    record = bytes(3 << 20)
    kept_at = (await cluster.js.publish(subject, b"record", expected_last=0)).seq
    pieces = piece_chain._cut(record, piece_chain._ROOM_BYTES)
    await cluster.js.publish(subject, pieces[0], expected_last=kept_at)
    await cluster.js.api(f"STREAM.PURGE.{stream}", {"filter": subject})
    with pytest.raises(CasConflict):
        await PieceChain(cluster.js, stream).write(subject, record, kept_at)
    assert await cluster.js.get_next(stream, subject, 1) is None


@pytest.mark.integration
async def test_a_full_store_of_responses_does_not_hold_up_a_result(stage: Stage) -> None:
    js, subjects = stage.cluster.js, stage.cluster.subjects
    stream = subjects.responses_stream
    kept_at = (await js.publish(subjects.response(RID), b"record", expected_last=0)).seq
    await set_limit(js, stream, 2000)
    status = DecodeStatus(RID, 1)
    reply = seal(ReplyParams("s", Surface.RESPONSES, "m", 0, 1, RID, kept_at=kept_at))
    end = End(0, FinishReason.CANCEL, "f", message="x" * 3000, reply=reply)
    status.apply_record(1, end)
    writing = asyncio.create_task(DoneWriter(stage.cluster, DetokStats()).write(status))
    done = await wait_for_done(stage.cluster, RID)
    assert done == done_of(status)
    assert not writing.done(), "its response is still to be kept"
    await set_limit(js, stream, 1 << 20)
    await asyncio.wait_for(writing, 10)
    stored = await PieceChain(js, stream).read(subjects.response(RID), kept_at + 1)
    assert stored == encode(done)


@pytest.mark.integration
@pytest.mark.parametrize("is_kept", [False, True])
async def test_what_a_result_cost_is_told_once(stage: Stage, is_kept: bool) -> None:
    js, subjects = stage.cluster.js, stage.cluster.subjects
    kept_at = (await js.publish(subjects.response(RID), b"record", expected_last=0)).seq
    reply = seal(
        ReplyParams(
            "s", Surface.RESPONSES, "m", 0, 1, RID, owner="o", kept_at=kept_at if is_kept else 0
        )
    )
    costs: list[TenantCost] = []

    async def on_cost(message: Msg) -> None:
        costs.append(decode(TenantCost, message.data))

    await stage.cluster.nc.subscribe(subjects.costs, cb=on_cost)
    for _ in range(2):
        await DoneWriter(stage.cluster, DetokStats()).write(finished_status(5, reply))
    assert await round_trip(stage.cluster.nc)
    assert costs == [TenantCost("o", 5)]


@pytest.mark.integration
async def test_a_successor_keeps_a_response_whose_result_is_stored_already(stage: Stage) -> None:
    """Its predecessor died while the store of responses was full."""
    cluster = stage.cluster
    js, subjects = cluster.js, cluster.subjects
    kept_at = (await js.publish(subjects.response(RID), b"record", expected_last=0)).seq
    reply = seal(ReplyParams("s", Surface.RESPONSES, "m", 0, 1, RID, kept_at=kept_at))
    done = encode(done_of(finished_status(5, reply)))
    await js.publish(subjects.done(RID), done, expected_last=0)
    worker = stage.worker()
    epoch = await worker.claim(RID)
    seq = await worker.write(RID, epoch, 0, [1, 2, 3, 4, 5], FINISH)
    await cluster.bucket(subjects.floors_bucket).put(str(subjects.partition(RID)), b"%d" % seq)
    responses = PieceChain(js, subjects.responses_stream)
    async with running_detok(stage.config):
        kept = await eventually_async(lambda: responses.read(subjects.response(RID), kept_at + 1))
    assert kept == done
