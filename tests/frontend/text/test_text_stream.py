"""Offsets: whatever order and overlap chunks have, the text is put together once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend.text.event_id import START, Mark
from frontend.text.text_stream import TextStream
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.reply import ReplyParams, Surface
from shared.protocol.text import TextChunk, checksum

STOP = Finish(FinishReason.STOP)


def make_reply(**changes: object) -> ReplyParams:
    fields: dict[str, object] = {
        "subject": "jf.out.f",
        "surface": Surface.CHAT,
        "model": "tiny",
        "created": 0,
        "num_prompt_tokens": 3,
        "group_id": "0" * 32,
    }
    return ReplyParams(**{**fields, **changes})  # type: ignore[arg-type]


def make_stream(**options: bool) -> tuple[TextStream, list[TextStream]]:
    news: list[TextStream] = []
    return TextStream("0" * 32, make_reply(), news.append, **options), news


def chunk(
    offset: int, text: str, finish: Finish | None = None, position: int | None = None
) -> TextChunk:
    """One token a code point."""
    end = offset + len(text) if position is None else position
    ids = list(range(end - len(text), end)) if end >= len(text) else []
    return TextChunk("0" * 32, end, offset, text, ids, finish)


def test_a_chunk_contributes_what_lies_beyond() -> None:
    stream, _ = make_stream()
    stream.receive(chunk(0, "abc"), 0)
    stream.receive(chunk(1, "bcde"), 0)
    stream.receive(chunk(0, "ab"), 0)
    assert stream.take() == "abcde"
    assert stream.mark == Mark(5, 5, checksum("abcde"))


def test_a_chunk_beyond_is_a_gap_until_it_is_filled() -> None:
    stream, news = make_stream()
    stream.receive(chunk(2, "c", STOP), 0)
    assert stream.has_gap
    assert stream.finish is None
    assert news == []
    stream.receive(chunk(0, "abc", STOP), 0)
    assert not stream.has_gap
    assert stream.take() == "abc"
    assert stream.finish is STOP


@pytest.mark.parametrize(
    ("offset", "text", "taken"),
    [
        (0, "", False),
        (0, "ab", False),
        (0, "abc", True),
        (3, "", True),
        (3, "d", True),
        (4, "", False),
    ],
)
def test_a_finish_is_taken_iff_it_ends_what_we_have(offset: int, text: str, taken: bool) -> None:
    stream, _ = make_stream()
    stream.receive(chunk(0, "abc"), 0)
    stream.receive(chunk(offset, text, STOP), 0)
    assert (stream.finish is STOP) is taken


def test_nothing_counts_after_a_finish() -> None:
    stream, news = make_stream()
    stream.receive(chunk(0, "abc", STOP), 0)
    stream.receive(chunk(3, "more", Finish(FinishReason.ERROR)), 0)
    assert stream.take() == "abc"
    assert stream.finish is STOP
    assert len(news) == 1


def test_token_ids_are_put_together_by_position() -> None:
    stream, _ = make_stream(keep_token_ids=True)
    stream.receive(TextChunk("", 2, 0, "ab", [10, 11]), 0)
    stream.receive(TextChunk("", 3, 0, "abc", [10, 11, 12]), 0)
    stream.receive(TextChunk("", 4, 3, "", [13]), 0)  # text held back
    stream.receive(TextChunk("", 5, 3, "de", [14], STOP), 0)
    assert stream.token_ids == [10, 11, 12, 13, 14]
    assert stream.take() == "abcde"


def test_skip_to_what_a_client_has() -> None:
    stream, _ = make_stream()
    stream.receive(chunk(0, "grüße 🙂!"), 0)
    seen = Mark(6, 6, checksum("grüße "))
    assert stream.skip_to(seen)
    assert stream.take() == "🙂!"
    assert stream.mark.checksum == checksum("grüße 🙂!")


def test_skip_to_another_text_is_refused() -> None:
    stream, _ = make_stream()
    stream.receive(chunk(0, "abc"), 0)
    assert not stream.skip_to(Mark(2, 2, checksum("xb")))
    assert stream.take() == "abc"


def test_skip_to_the_start_keeps_all() -> None:
    stream, _ = make_stream()
    stream.receive(chunk(0, "abc"), 0)
    assert stream.skip_to(START)
    assert stream.take() == "abc"


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[str, list[TextChunk]]:
    """A text and chunks of it in any order: repeated, overlapping, some of them too early."""
    text = draw(st.text(max_size=30))
    chunks = []
    for _ in range(draw(st.integers(0, 30))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.integers(start, len(text)))
        finish = STOP if end == len(text) and draw(st.booleans()) else None
        chunks.append(chunk(start, text[start:end], finish))
    return text, [*chunks, chunk(0, text, STOP)]  # a replay always tells all


@given(deliveries(), st.lists(st.booleans(), min_size=31, max_size=31))
def test_any_delivery_gives_the_text_once(
    delivery: tuple[str, list[TextChunk]], takes: list[bool]
) -> None:
    text, chunks = delivery
    stream, _ = make_stream(keep_token_ids=True)
    taken = ""
    for piece, take in zip(chunks, takes, strict=False):
        stream.receive(piece, 0)
        if take:
            taken += stream.take()
            assert text.startswith(taken)
            assert stream.mark.checksum == checksum(taken)
    taken += stream.take()
    assert taken == text
    assert stream.finish is STOP
    assert stream.token_ids == list(range(len(text)))


# A broker that has lost what was shown: another text, or an end before ours


def told(offset: int, text: str, before: str, **fields: Any) -> TextChunk:
    """With the checksum of the text before it."""
    end = offset + len(text)
    return TextChunk("0" * 32, end, offset, text, checksum=checksum(before), **fields)


@pytest.mark.parametrize(
    "another",
    [
        told(0, "abX", ""),
        told(0, "abXde", ""),
        told(1, "bXd", "a"),
        told(2, "cde", "Xb"),
        told(3, "de", "abX"),
        told(3, "", "abX", finish=STOP),
        told(0, "ab", "", finish=STOP),
        told(2, "", "ab", finish=STOP),
    ],
)
def test_another_text_tears_the_stream(another: TextChunk) -> None:
    stream, news = make_stream()
    stream.receive(told(0, "ab", ""), 0)
    stream.receive(told(2, "c", "ab"), 0)
    stream.receive(another, 0)
    stream.receive(told(3, "d", "abc"), 0)
    assert stream.is_torn
    assert stream.finish is None
    assert stream.take() == "abc"
    assert news == [stream] * 3


@pytest.mark.parametrize(
    "same",
    [
        told(0, "abc", ""),
        told(1, "bcd", "a"),
        told(0, "a", ""),
        told(3, "d", "abc"),
        told(3, "", "abc", finish=STOP),
        chunk(3, "d"),  # of a detokenizer that tells no checksums
    ],
)
def test_the_same_text_goes_on(same: TextChunk) -> None:
    stream, _ = make_stream()
    stream.receive(told(0, "ab", ""), 0)
    stream.receive(told(2, "c", "ab"), 0)
    assert stream.take() == "abc"
    stream.receive(same, 0)
    assert not stream.is_torn
    assert stream.mark.checksum == checksum("abc")


def test_other_tokens_of_the_same_text_tear_the_stream() -> None:
    stream, _ = make_stream(keep_token_ids=True)
    stream.receive(TextChunk("", 2, 0, "ab", [10, 11]), 0)
    stream.receive(TextChunk("", 3, 0, "abc", [10, 12, 13]), 0)
    assert stream.is_torn
    assert stream.token_ids == [10, 11]
