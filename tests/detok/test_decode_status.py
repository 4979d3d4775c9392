"""What is known of one live request, and what is still to be said."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from detok.chunk_pieces import MAX_PIECE_BYTES, num_bytes_of, pieces_of
from detok.decode_status import DecodeStatus
from detok.done_writer import done_of
from shared.protocol.codec import decode, encode
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.log_records import Claim, End, TokenEntry
from shared.protocol.logprobs import TokenLogprob, pack_logprobs, unpack_logprobs
from shared.protocol.reply import ReplyParams, Surface, TextParams
from shared.protocol.sealed_replies import seal
from shared.protocol.text import Done, TextChunk, checksum
from shared.token_log.fold import RequestFold
from tests.detok.scripted import make_tokenizer

RID = "0" * 32
STOP = Finish(FinishReason.STOP)


class FakeTokenizers:
    def __init__(self) -> None:
        self.tokenizer = make_tokenizer()
        self.is_there = True

    def get(self, _tokenizer_hash: str) -> Tokenizer | None:
        return self.tokenizer if self.is_there else None


@pytest.fixture
def tokenizers() -> FakeTokenizers:
    return FakeTokenizers()


def make_status(
    stop: tuple[str, ...] = (),
    subject: str = "jf.out.f",
    *,
    is_whole: bool = False,
    level: int = 1,
) -> DecodeStatus:
    status = DecodeStatus(RID, 5)
    reply = seal(ReplyParams(subject, Surface.CHAT, "m", 1, 3, RID, is_whole=is_whole))
    text = TextParams(stop=stop)
    status.apply_record(5, Claim(0, "w", "n", 1, "a", "h", text, reply, "pool", level=level))
    return status


def test_what_is_over_is_acknowledged_here_if_the_log_says_so_and_its_worker_leaves_it() -> None:
    def told(level: int, *, is_ended: bool = False, fails: bool = False) -> bool:
        status = make_status(level=level)
        assert not status.is_for_us_to_ack
        if is_ended:
            status.apply_record(7, End(5, FinishReason.CANCEL, by="f"))
        elif fails:
            status.fail(STOP)
        else:
            status.apply_entry(7, "other", TokenEntry(RID, 5, 0, [1], STOP))
            status.apply_entry(8, "w", TokenEntry(RID, 4, 0, [1], STOP))
            assert not status.is_for_us_to_ack
            write(status, 0, [1], STOP)
        return status.is_for_us_to_ack

    assert (told(4), told(4, is_ended=True)) == (True, True)
    assert (told(3), told(3, is_ended=True), told(4, fails=True)) == (False, False, False)


def write(status: DecodeStatus, position: int, ids: list[int], finish: Finish | None = None) -> int:
    return status.apply_entry(10 + position, "w", TokenEntry(RID, 5, position, ids, finish))


def next_chunk(status: DecodeStatus, tokenizers: FakeTokenizers) -> TextChunk | None:
    assert status.bring_up_to_date(tokenizers)  # type: ignore[arg-type]
    return status.next_chunk()


def test_a_chunk_carries_the_logprobs_of_its_tokens(tokenizers: FakeTokenizers) -> None:
    status = make_status()
    ids = tokenizers.tokenizer.encode("the quick fox").ids
    records = [pack_logprobs([TokenLogprob(token_id, 1, -0.5, ((3, -0.5),))]) for token_id in ids]
    first = TokenEntry(RID, 5, 0, ids[:2], None, b"".join(records[:2]), b"prompt")
    status.apply_entry(10, "w", first)
    chunk = next_chunk(status, tokenizers)
    assert chunk is not None
    assert (chunk.logprobs, chunk.prompt_logprobs) == (b"".join(records[:2]), b"prompt")
    rest = TokenEntry(RID, 5, 2, ids[2:], STOP, b"".join(records[2:]))
    status.apply_entry(12, "w", rest)
    chunk = next_chunk(status, tokenizers)
    assert chunk is not None
    assert chunk.token_ids == ids[2:]
    assert (chunk.logprobs, chunk.prompt_logprobs) == (b"".join(records[2:]), b"")
    replay = status.replay_chunk(4)
    assert (replay.logprobs, replay.prompt_logprobs) == (b"".join(records), b"prompt")
    done = done_of(status)
    assert (done.logprobs, done.prompt_logprobs) == (replay.logprobs, b"prompt")
    assert decode(Done, encode(done)) == done


def test_a_split_chunk_keeps_each_record_with_its_token() -> None:
    token_ids = list(range(70_000))
    logprobs = pack_logprobs([TokenLogprob(token_id, 1, -1.0) for token_id in token_ids])
    chunk = TextChunk(RID, 70_000, 0, "x" * 100, token_ids, STOP, logprobs, b"prompt")
    pieces = list(pieces_of(chunk))
    assert len(pieces) > 2
    assert max(map(num_bytes_of, pieces)) <= MAX_PIECE_BYTES
    for piece in pieces:
        records = unpack_logprobs(piece.logprobs, 0)
        assert [record.token_id for record in records] == piece.token_ids
    assert [piece.prompt_logprobs for piece in pieces] == [b"prompt"] + [b""] * (len(pieces) - 1)


def test_each_chunk_begins_where_the_last_one_ended(tokenizers: FakeTokenizers) -> None:
    status = make_status()
    ids = tokenizers.tokenizer.encode("the fox").ids
    write(status, 0, ids[:1])
    assert next_chunk(status, tokenizers) == TextChunk(RID, 1, 0, "the", ids[:1])
    assert next_chunk(status, tokenizers) is None
    write(status, 1, ids[1:], STOP)
    assert next_chunk(status, tokenizers) == TextChunk(
        RID, len(ids), 3, " fox", ids[1:], STOP, checksum=checksum("the")
    )


def test_tokens_without_text_ride_with_the_next_chunk(tokenizers: FakeTokenizers) -> None:
    status = make_status()
    ids = tokenizers.tokenizer.encode("🙂").ids
    assert len(ids) > 1
    write(status, 0, ids[:1])
    assert next_chunk(status, tokenizers) is None
    write(status, 1, ids[1:])
    assert next_chunk(status, tokenizers) == TextChunk(RID, len(ids), 0, "🙂", ids)


def test_without_a_tokenizer_it_is_not_up_to_date(tokenizers: FakeTokenizers) -> None:
    status = make_status()
    tokenizers.is_there = False
    assert status.bring_up_to_date(tokenizers)  # type: ignore[arg-type]
    write(status, 0, [5])
    assert not status.bring_up_to_date(tokenizers)  # type: ignore[arg-type]
    tokenizers.is_there = True
    assert next_chunk(status, tokenizers) is not None
    tokenizers.is_there = False  # forgotten by the cache: the request keeps its own
    write(status, 1, [6])
    assert next_chunk(status, tokenizers) is not None


def test_a_finish_without_tokens_needs_no_tokenizer(tokenizers: FakeTokenizers) -> None:
    tokenizers.is_there = False
    status = make_status()
    status.apply_record(6, End(5, FinishReason.CANCEL, "f"))
    cancelled = Finish(FinishReason.CANCEL)
    assert next_chunk(status, tokenizers) == TextChunk(RID, 0, 0, "", [], cancelled)


def test_tokens_behind_a_stop_string_are_not_shown(tokenizers: FakeTokenizers) -> None:
    """The worker never writes them; a damaged log might hold them."""
    status = make_status(stop=("END",))
    write(status, 0, tokenizers.tokenizer.encode("a END b").ids)
    write(status, status.fold.epoch_len, tokenizers.tokenizer.encode(" c").ids, STOP)
    chunk = next_chunk(status, tokenizers)
    assert chunk is not None
    assert (chunk.text, chunk.finish) == ("a ", STOP)


def test_a_replay_is_all_ids_and_the_text_from_the_offset(tokenizers: FakeTokenizers) -> None:
    status = make_status()
    ids = tokenizers.tokenizer.encode("the fox").ids
    write(status, 0, ids)
    next_chunk(status, tokenizers)
    assert status.replay_chunk(4) == TextChunk(
        RID, len(ids), 4, "fox", ids, checksum=checksum("the ")
    )
    assert status.replay_chunk(99) == TextChunk(
        RID, len(ids), 7, "", ids, checksum=checksum("the fox")
    )


def test_listeners_are_told_apart_and_the_oldest_gives_way() -> None:
    status = make_status()
    for name in ("jf.out.f", "a", "b", "a", "c", "d", "e", ""):
        status.add_subject(name)
    assert status.subjects == ["jf.out.f", "b", "c", "d", "e"]
    assert make_status(subject="").subjects == []


def test_a_whole_fold_replaces_a_part_and_repeats_nothing(tokenizers: FakeTokenizers) -> None:
    ids = tokenizers.tokenizer.encode("the lazy fox").ids
    part = make_status()
    part.is_partial = True
    write(part, 0, ids[:1])
    assert next_chunk(part, tokenizers) == TextChunk(RID, 1, 0, "the", ids[:1])
    part.adopt(RequestFold(RID, 5, "w", len(ids), list(ids), STOP))
    assert next_chunk(part, tokenizers) == TextChunk(
        RID, len(ids), 3, " lazy fox", ids[1:], STOP, checksum=checksum("the")
    )


def test_a_resend_does_not_complete_what_has_ended_in_part() -> None:
    status = make_status()
    status.is_partial = True
    status.apply_record(6, End(5, FinishReason.CANCEL, "f"))
    write(status, 0, [1, 2])
    assert status.is_partial


def test_damage_is_seen_again_by_who_reads_from_the_rebuild_point() -> None:
    status = make_status()
    write(status, 0, [1, 2])
    status.apply_entry(20, "w", TokenEntry(RID, 5, 0, [1, 9]))
    assert status.fold.finish is not None
    assert status.fold.finish.reason is FinishReason.ERROR
    assert status.rebuild_point.seq < 20


def test_an_answer_in_one_piece_is_sent_with_its_finish(tokenizers: FakeTokenizers) -> None:
    status = make_status(is_whole=True)
    ids = tokenizers.tokenizer.encode("the quick brown fox").ids
    write(status, 0, ids[:2])
    assert not status.is_worth_a_look
    assert next_chunk(status, tokenizers) is None
    write(status, 2, ids[2:], STOP)
    assert status.is_worth_a_look
    chunk = next_chunk(status, tokenizers)
    assert chunk is not None
    assert (chunk.offset, chunk.text, chunk.token_ids) == (0, "the quick brown fox", ids)
    assert chunk.finish == STOP


def test_whoever_follows_an_answer_in_one_piece_is_sent_it_as_it_comes(
    tokenizers: FakeTokenizers,
) -> None:
    status = make_status(is_whole=True)
    ids = tokenizers.tokenizer.encode("the quick brown fox").ids
    write(status, 0, ids[:2])
    status.add_subject("")  # only looks
    assert next_chunk(status, tokenizers) is None
    status.add_subject("jf.out.f")  # its own frontend, for a second client
    assert status.is_worth_a_look
    chunk = next_chunk(status, tokenizers)
    assert chunk is not None
    assert chunk.text == "the quick"


def test_a_long_answer_in_one_piece_is_decoded_on_the_way(tokenizers: FakeTokenizers) -> None:
    status = make_status(is_whole=True)
    write(status, 0, tokenizers.tokenizer.encode("the").ids * 64)
    assert status.is_worth_a_look
    assert next_chunk(status, tokenizers) is None
    assert status.text.startswith("the")
    assert not status.is_worth_a_look
