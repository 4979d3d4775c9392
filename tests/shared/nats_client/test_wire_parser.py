"""Messages and lines, however their bytes are cut on the way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.errors import ProtocolError

from shared.nats_client.wire_parser import MAX_LINE_BYTES, WireParser

WIRE = (
    b"PING\r\n"
    b"MSG a.b 1 5\r\nhello\r\n"
    b"MSG a.b 2 _INBOX.x 2\r\n\r\n\r\n"
    b"HMSG a.b 3 _INBOX.y 12 17\r\nNATS/1.0\r\n\r\nworld\r\n"
    b"HMSG c 3 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"
    b"-ERR 'no'\r\n"
)
HEARD = [
    b"PING",
    (1, "a.b", "", b"hello", b""),
    (2, "a.b", "_INBOX.x", b"\r\n", b""),
    (3, "a.b", "_INBOX.y", b"world", b"NATS/1.0\r\n\r\n"),
    (3, "c", "", b"", b"NATS/1.0 503\r\n\r\n"),
    b"-ERR 'no'",
]


def heard(*pieces: bytes) -> list[object]:
    seen: list[object] = []
    parser = WireParser(lambda *message: seen.append(message), seen.append)
    for piece in pieces:
        parser.feed(piece)
    return seen


def test_all_at_once() -> None:
    assert heard(WIRE) == HEARD


def test_byte_by_byte() -> None:
    assert heard(*(WIRE[i : i + 1] for i in range(len(WIRE)))) == HEARD


@given(st.sets(st.integers(1, len(WIRE) - 1)))
def test_cut_anywhere(cuts: set[int]) -> None:
    ends = [*sorted(cuts), len(WIRE)]
    starts = [0, *ends[:-1]]
    assert heard(*(WIRE[a:b] for a, b in zip(starts, ends, strict=True))) == HEARD


def test_a_subject_that_is_no_text_is_a_subject() -> None:
    assert heard(b"MSG a.\xff 1 1\r\nx\r\n") == [(1, "a.\N{REPLACEMENT CHARACTER}", "", b"x", b"")]


def test_a_large_message_is_looked_at_when_it_is_whole() -> None:
    payload = bytes(1_000_000)
    wire = b"MSG a 1 1000000\r\n" + payload + b"\r\n"
    assert heard(*(wire[i : i + 4096] for i in range(0, len(wire), 4096))) == [
        (1, "a", "", payload, b"")
    ]


@pytest.mark.parametrize("line", [b"MSG a b c\r\n", b"MSG\r\n", b"MSG a 1 -x\r\n"])
def test_what_no_server_sends_is_refused(line: bytes) -> None:
    if line.startswith(b"MSG "):
        with pytest.raises(ProtocolError):
            heard(line)
    else:
        assert heard(line) == [b"MSG"], "a line like any other, which the client does not know"


def test_a_line_without_end_is_refused() -> None:
    with pytest.raises(ProtocolError):
        heard(b"x" * (MAX_LINE_BYTES + 1))
