"""Where a stream is found, whatever stands in its way; and what is said when it is not."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest
from nats.aio.msg import Msg

from frontend.inference.resuming.stream_finder import KnownChoice, StreamFinder
from frontend.streams.detok_client import DetokClient
from shared.errors import BrokerUnavailable, MalformedMessage, NotFound, ServiceUnavailable
from shared.protocol.codec import encode
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.log_records import End, Release
from shared.protocol.reply import AnswerFormat, ReplyParams, SealedReply, Surface
from shared.protocol.request import GenerateRequest
from shared.protocol.sealed_replies import seal
from shared.protocol.text import Done, ReplayReply, ReplayStatus
from shared.subjects import choice_rid, new_rid
from shared.token_log.request_queue import RequestQueue
from tests.bad_moment import failing_once
from tests.eventually import eventually_async
from tests.nats_server import NatsServer
from tests.worker.io_stage import Stage, make_claim, make_request, open_stage

pytestmark = pytest.mark.integration

STOP = Finish(FinishReason.STOP)


@pytest.fixture
async def stage(nats_server: NatsServer) -> AsyncIterator[Stage]:
    async with open_stage(nats_server.url) as stage:
        yield stage


@pytest.fixture
def detok(stage: Stage) -> DetokClient:
    """Of a service in which no detokenizer runs."""
    return DetokClient(stage.cluster.nc, stage.cluster.subjects, "jf.out.x")


@pytest.fixture
def finder(stage: Stage, detok: DetokClient, monkeypatch: pytest.MonkeyPatch) -> StreamFinder:
    monkeypatch.setattr("frontend.inference.resuming.stream_finder._RETRY_S", 0.01)
    return StreamFinder(stage.cluster, detok)


def make_reply(
    rid: str,
    group_id: str = "",
    num_choices: int = 1,
    choice_idx: int = 0,
    answer: AnswerFormat | None = None,
) -> SealedReply:
    return seal(
        ReplyParams(
            "jf.out.f",
            Surface.CHAT,
            "m",
            1,
            3,
            group_id or rid,
            choice_idx=choice_idx,
            num_choices=num_choices,
            owner="o",
            answer=answer,
        )
    )


async def store_done(stage: Stage, rid: str, reply: SealedReply | None) -> None:
    done = Done(rid, b"\x05\x00\x00\x00", "Hi", STOP, reply)
    await stage.cluster.js.publish(stage.cluster.subjects.done(rid), encode(done))


async def submit(stage: Stage, rid: str, reply: SealedReply) -> GenerateRequest:
    request = make_request(rid, reply=reply)
    await stage.submit(request)
    return request


async def test_a_moment_without_nats_makes_no_stream_unknown(
    stage: Stage, finder: StreamFinder, monkeypatch: pytest.MonkeyPatch
) -> None:
    rid = new_rid()
    await submit(stage, rid, make_reply(rid))
    failing_once(monkeypatch, RequestQueue, "find_queued", BrokerUnavailable("away"))
    (choice,) = await finder.known(rid, "o")
    assert (choice.rid, choice.is_over) == (rid, False)


async def test_a_choice_alone_is_no_stream_and_all_choices_are_needed(
    stage: Stage, finder: StreamFinder
) -> None:
    group_id = new_rid()
    rids = [group_id, choice_rid(group_id, 1)]
    replies = [make_reply(rid, group_id, 2, idx) for idx, rid in enumerate(rids)]
    await submit(stage, rids[0], replies[0])
    with pytest.raises(NotFound):
        await finder.known(group_id, "o")
    await store_done(stage, rids[1], replies[1])
    with pytest.raises(NotFound):
        await finder.known(rids[1], "o")
    with pytest.raises(NotFound):
        await finder.known(group_id, "another owner")
    assert [choice.is_over for choice in await finder.known(group_id, "o")] == [False, True]


async def test_what_is_no_name_of_a_stream_is_asked_of_nobody(
    finder: StreamFinder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finder, "_look", None)
    for name in ("", "a b", "*", ">", "x" * 32, new_rid().upper()):
        with pytest.raises(NotFound):
            await finder.known(name, "o")


async def test_how_long_a_request_has_waited_is_known(stage: Stage, finder: StreamFinder) -> None:
    """Whoever resumes it gives it what is left of its time."""
    rid = new_rid()
    await submit(stage, rid, make_reply(rid))

    async def age_s() -> float | None:
        (choice,) = await finder.known(rid, "o")
        return choice.age_s if choice.age_s > 0.1 else None

    assert await eventually_async(age_s) < 60


async def test_what_was_released_last_is_known_by_the_claim_before(
    stage: Stage, finder: StreamFinder
) -> None:
    """Its message left the queue, and its result is not stored yet."""
    rid = new_rid()
    request = make_request(rid, reply=make_reply(rid))
    epoch = await stage.append(rid, make_claim(request, "w"))
    await stage.append(rid, Release(epoch, "w"))
    (choice,) = await finder.known(rid, "o")
    assert (choice.rid, choice.is_over) == (rid, False)


async def test_a_finished_text_needs_no_detokenizer(stage: Stage, finder: StreamFinder) -> None:
    rid = new_rid()
    await store_done(stage, rid, make_reply(rid))
    (found,) = await finder.texts(await finder.known(rid, "o"))
    assert found.chunk is not None
    assert (found.chunk.text, found.chunk.token_ids, found.chunk.finish) == ("Hi", [5], STOP)


async def test_what_is_heard_here_is_asked_of_nobody(finder: StreamFinder) -> None:
    rid = new_rid()
    reply = ReplyParams("jf.out.f", Surface.CHAT, "m", 1, 3, rid)
    (found,) = await finder.texts([KnownChoice(rid, reply, is_read_here=True)])
    assert found.chunk is None


async def test_a_text_that_no_detokenizer_tells_can_be_asked_for_again(
    stage: Stage, detok: DetokClient, finder: StreamFinder, monkeypatch: pytest.MonkeyPatch
) -> None:
    rid = new_rid()
    await submit(stage, rid, make_reply(rid))
    known = await finder.known(rid, "o")
    with pytest.raises(ServiceUnavailable, match="No detokenizer answers now"):
        await finder.texts(known)
    failing_once(monkeypatch, detok, "replay", MalformedMessage("no answer of ours"))
    with pytest.raises(ServiceUnavailable, match="cannot be read"):
        await finder.texts(known)


async def test_one_detokenizer_takes_over_from_another_while_it_is_asked(
    stage: Stage, detok: DetokClient, finder: StreamFinder, monkeypatch: pytest.MonkeyPatch
) -> None:
    rid = new_rid()
    await submit(stage, rid, make_reply(rid))
    known = await finder.known(rid, "o")

    async def answer(message: Msg) -> None:
        await message.respond(encode(ReplayReply(ReplayStatus.QUEUED)))

    subjects = stage.cluster.subjects
    await stage.cluster.nc.subscribe(subjects.replay(subjects.partition(rid)), cb=answer)
    failing_once(monkeypatch, detok, "replay", BrokerUnavailable("it has just died"))
    (found,) = await finder.texts(known)
    assert (found.rid, found.chunk) == (rid, None)


@pytest.mark.parametrize("what", ["rendering", "parser"])
@pytest.mark.parametrize("where", ["queue", "log", "results"])
async def test_what_a_newer_frontend_has_sealed_is_left_to_it(
    stage: Stage, finder: StreamFinder, where: str, what: str
) -> None:
    rid = new_rid()
    if what == "rendering":
        newer = msgspec.structs.replace(make_reply(rid), rendering=b"\xc1")
    else:
        newer = make_reply(rid, answer=AnswerFormat(tools="of_tomorrow"))
    if where == "queue":
        await submit(stage, rid, newer)
    elif where == "log":
        await stage.append(rid, End(0, FinishReason.CANCEL, by="f", reply=newer))
    else:
        await store_done(stage, rid, newer)
    with pytest.raises(ServiceUnavailable, match="another version"):
        await finder.known(rid, "o")


async def test_a_result_that_cannot_be_read_is_no_missing_stream(
    stage: Stage, finder: StreamFinder
) -> None:
    rid = new_rid()
    await stage.cluster.js.publish(stage.cluster.subjects.done(rid), b"\xc1")
    with pytest.raises(ServiceUnavailable, match="The result cannot be read"):
        await finder.known(rid, "o")


async def test_a_result_that_belongs_to_nobody_is_no_stream(
    stage: Stage, finder: StreamFinder
) -> None:
    rid = new_rid()
    await store_done(stage, rid, None)
    with pytest.raises(NotFound):
        await finder.known(rid, "")
