"""A result always fits the broker, and is written until it is stored."""

from __future__ import annotations

import pytest

from detok import done_writer
from detok.decode_status import DecodeStatus
from detok.detok_stats import DetokStats
from detok.done_writer import DoneWriter, encode_done
from shared.codec import decode
from shared.errors import BrokerError, BrokerUnavailable, CasConflict
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.log_records import End
from shared.protocol.reply import ReplyParams, Surface
from shared.protocol.text import Done
from shared.subjects import Subjects
from shared.token_ids import pack_token_ids

FINISH = Finish(FinishReason.LENGTH)


class FakeJetStream:
    def __init__(self, *outcomes: Exception | None) -> None:
        self.outcomes = list(outcomes)
        self.published: list[tuple[str, int | None]] = []

    async def publish(self, subject: str, payload: bytes, *, expected_last: int) -> None:
        self.published.append((subject, expected_last))
        outcome = self.outcomes.pop(0)
        if outcome is not None:
            raise outcome


class FakeCluster:
    def __init__(self, js: FakeJetStream) -> None:
        self.js = js
        self.nc = self
        self.max_payload = 1 << 20
        self.subjects = Subjects()


@pytest.mark.parametrize(
    ("outcomes", "num_written"),
    [
        ([None], 1),
        ([CasConflict("taken")], 0),
        ([BrokerUnavailable("away"), BrokerError("full", 10077), None], 1),
        ([BrokerUnavailable("away"), CasConflict("it was stored")], 0),
    ],
)
async def test_until_it_is_stored(
    monkeypatch: pytest.MonkeyPatch, outcomes: list[Exception | None], num_written: int
) -> None:
    monkeypatch.setattr(done_writer, "_RETRY_S", 0.001)
    status = DecodeStatus("0" * 32, 1)
    status.apply_record(1, End(0, FinishReason.CANCEL, "f"))
    js, stats = FakeJetStream(*outcomes), DetokStats()
    await DoneWriter(FakeCluster(js), stats).write(status)  # type: ignore[arg-type]
    assert js.published == [(f"jf.done.{'0' * 32}", 0)] * len(outcomes)
    assert stats.done_written == num_written


@pytest.mark.parametrize("outcome", [None, CasConflict("the response was deleted")])
async def test_a_kept_response_gets_its_result_behind_its_record(outcome: Exception | None) -> None:
    status = DecodeStatus("0" * 32, 1)
    reply = ReplyParams("s", Surface.RESPONSES, "m", 0, 1, "0" * 32, kept_at=7)
    status.apply_record(1, End(0, FinishReason.CANCEL, "f", reply=reply))
    js, stats = FakeJetStream(outcome, None), DetokStats()
    await DoneWriter(FakeCluster(js), stats).write(status)  # type: ignore[arg-type]
    assert js.published == [(f"jf.resp.{'0' * 32}", 7), (f"jf.done.{'0' * 32}", 0)]
    assert stats.done_written == 1


def test_a_result_that_fits_is_whole() -> None:
    done = Done("r", pack_token_ids([1, 2]), "text", FINISH, None)
    assert decode(Done, encode_done(done, 100_000)) == done


def test_a_large_result_goes_without_its_ids() -> None:
    done = Done("r", pack_token_ids([1] * 3000), "text", FINISH, None)
    assert decode(Done, encode_done(done, 10_000)) == Done("r", b"", "text", FINISH, None)


def test_a_result_that_cannot_be_stored_says_why() -> None:
    done = decode(Done, encode_done(Done("r", b"", "x" * 20_000, FINISH, None), 10_000))
    assert (done.text, done.finish.reason) == ("", FinishReason.ERROR)
    assert done.finish.message is not None
    assert "max_payload" in done.finish.message
