"""Chunks leave in few messages, none too large, and together they are the whole text."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import nats.errors
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detok import chunk_pieces
from detok.chunk_pieces import num_bytes_of, pieces_of
from detok.detok_stats import DetokStats
from detok.text_outbox import TextOutbox
from shared.broker.named_subjects import NamedSubjects
from shared.broker.text_readers import TextReaders
from shared.protocol.codec import decode_text_frame
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.text import TextChunk
from shared.subjects import Subjects
from tests.time_to_err import time_to_err

FINISH = Finish(FinishReason.STOP)


class FakeClient:
    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes]] = []
        self.fails = False

    async def publish(self, subject: str, payload: bytes) -> None:
        if self.fails:
            raise nats.errors.OutboundBufferLimitError
        self.sent.append((subject, payload))


class FakeSource:
    def __init__(self, *items: tuple[list[str], TextChunk]) -> None:
        self.items = list(items)

    def collect(self) -> Iterator[tuple[list[str], TextChunk]]:
        while self.items:
            yield self.items.pop(0)


def make_outbox() -> tuple[TextOutbox, FakeClient, DetokStats]:
    client, stats = FakeClient(), DetokStats()
    told = NamedSubjects(Subjects())
    return TextOutbox(client, "detok-1", stats, told, TextReaders()), client, stats  # type: ignore[arg-type]


async def test_one_message_a_reply_subject() -> None:
    outbox, client, stats = make_outbox()
    chunks = [TextChunk(f"r{i}", 1, 0, "text", [i]) for i in range(3)]
    outbox.mark(FakeSource((["jf.out.a"], chunks[0]), (["jf.out.b"], chunks[1])))
    outbox.mark(FakeSource((["jf.out.a", "jf.out.b"], chunks[2])))
    await outbox.flush()
    sent = {subject: decode_text_frame(payload).chunks for subject, payload in client.sent}
    assert sent == {"jf.out.a": [chunks[0], chunks[2]], "jf.out.b": [chunks[1], chunks[2]]}
    assert (stats.chunks, stats.text_frames) == (4, 2)


async def test_a_reader_in_this_process_hears_it_by_a_call_and_may_fail() -> None:
    outbox, client, stats = make_outbox()
    heard: list[TextChunk] = []

    def fail(chunks: Sequence[TextChunk]) -> None:
        heard.extend(chunks)
        raise RuntimeError

    outbox.readers.add("jf.out.a", heard.extend)
    outbox.readers.add("jf.out.b", fail)
    chunks = [TextChunk(f"r{i}", 1, 0, "text", [i]) for i in range(3)]
    subjects = ["jf.out.a", "jf.out.b", "jf.out.c"]
    outbox.mark(FakeSource(*((subjects[i:], chunks[i]) for i in range(3))))
    await outbox.flush()
    assert heard == [chunks[0], *chunks[:2]]
    [(subject, payload)] = client.sent
    assert (subject, decode_text_frame(payload).chunks) == ("jf.out.c", chunks)
    assert (stats.chunks, stats.text_frames) == (6, 1)


async def test_nothing_but_a_delivery_is_acknowledged() -> None:
    outbox, client, stats = make_outbox()
    delivery = "$JS.ACK.jf_REQUESTS.pool_interactive.1.2.3.4.0"
    for subject in (delivery, "jf.own.0.r", "$JS.ACK.jf_TOKENS.pool_interactive.1.2.3.4.0"):
        outbox.acknowledge("r", subject)
    await outbox.flush()
    assert (client.sent, stats.acks) == ([(delivery, b"+ACK")], 1)


async def test_marks_of_one_turn_are_one_flush() -> None:
    outbox, client, _ = make_outbox()
    task = asyncio.create_task(outbox.run())
    await asyncio.sleep(0)
    source = FakeSource()
    for i in range(5):
        source.items.append((["jf.out.a"], TextChunk("r", i, i, "x")))
        outbox.mark(source)
    await time_to_err(0.01)
    assert len(client.sent) == 1
    task.cancel()


async def test_a_broken_connection_does_not_end_the_outbox() -> None:
    outbox, client, _ = make_outbox()
    client.fails = True
    outbox.mark(FakeSource((["jf.out.a"], TextChunk("r", 1, 0, "x"))))
    await outbox.flush()
    client.fails = False
    outbox.post("control", b"notice")
    await outbox.flush()
    assert client.sent == [("control", b"notice")]


async def test_large_flushes_stay_below_the_limit_of_the_broker() -> None:
    outbox, client, _ = make_outbox()
    text = "日本語🙂" * 25_000
    ids = list(range(1 << 31, (1 << 31) + 100_000))
    outbox.mark(FakeSource(*[(["jf.out.a"], TextChunk("r", len(ids), 0, text, ids))] * 5))
    await outbox.flush()
    assert max(len(payload) for _, payload in client.sent) < 1_000_000
    chunks = [chunk for _, payload in client.sent for chunk in decode_text_frame(payload).chunks]
    assert "".join(chunk.text for chunk in chunks) == text * 5


async def test_a_takeover_of_many_long_texts_leaves_the_loop_to_others() -> None:
    outbox, _, _ = make_outbox()
    source = FakeSource(*[(["jf.out.a"], TextChunk("r", 1000, 0, "x", [1] * 1000))] * 100)
    outbox.mark(source)
    task = asyncio.create_task(outbox.flush())
    num_turns = 0
    while source.items:
        await asyncio.sleep(0)
        num_turns += 1
    await task
    assert num_turns > 10


@given(st.integers(0, 60), st.integers(0, 30), st.integers(0, 9))
def test_the_pieces_of_a_chunk_are_the_chunk(num_chars: int, num_ids: int, offset: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk_pieces, "MAX_PIECE_BYTES", 130)
        text = "".join(chr(65 + i) for i in range(num_chars))
        whole = TextChunk("r", 100 + num_ids, offset, text, list(range(num_ids)), FINISH)
        pieces = list(pieces_of(whole))
    assert "".join(piece.text for piece in pieces) == text
    assert [i for piece in pieces for i in piece.token_ids] == whole.token_ids
    assert [piece.finish for piece in pieces] == [None] * (len(pieces) - 1) + [FINISH]
    at, position = offset, 100
    for piece in pieces:
        assert num_bytes_of(piece) <= 100 + 130 + 4 + 5
        position += len(piece.token_ids)
        assert (piece.offset, piece.position) == (at, position)
        at += len(piece.text)


async def test_embeddings_leave_in_messages_that_the_broker_takes() -> None:
    outbox, client, _ = make_outbox()
    finish = Finish(FinishReason.STOP, embedding=bytes(200_000))
    chunks = [TextChunk(f"r{i}", 0, 0, "", [], finish) for i in range(9)]
    outbox.mark(FakeSource(*((["jf.out.a"], chunk) for chunk in chunks)))
    await outbox.flush()
    assert max(len(payload) for _, payload in client.sent) < 800_000
    assert [c for _, payload in client.sent for c in decode_text_frame(payload).chunks] == chunks


async def test_text_goes_to_frontends_alone() -> None:
    outbox, client, _ = make_outbox()
    for subject in ("$JS.API.STREAM.PURGE.jf_TOKENS", "jf.own.0.x", "jf.out.>", "jf.out.a.b"):
        outbox.mark(FakeSource(([subject, "jf.out.a"], TextChunk("r", 1, 0, "x"))))
    await outbox.flush()
    assert {subject for subject, _ in client.sent} == {"jf.out.a"}
