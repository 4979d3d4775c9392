import asyncio

import pytest

from bench.stream_client import PeerProtocol, StreamProtocol, StreamResult, UsageProtocol

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class NoTransport(asyncio.Transport):
    def write(self, data: object) -> None:
        pass


async def received(protocol: StreamProtocol, *pieces: bytes) -> StreamResult:
    answer = protocol.request(NoTransport(), b"")
    for piece in (HEAD, *pieces, b"0\r\n\r\n"):
        protocol.data_received(piece)
    return await answer


@pytest.mark.parametrize("cut", [10, 45, 62, 65])
async def test_usage_in_each_event_counts_tokens_wherever_the_bytes_are_cut(cut: int) -> None:
    event = b'data: {"choices":[{"text":""}],"usage":{"completion_tokens":%d,"total_tokens":9}}\n\n'
    one, four = event % 1, event % 4
    result = await received(UsageProtocol(), one + four[:cut], four[cut:])
    assert result.num_tokens == 4
    assert result.arrivals[-1][1] == 4


async def test_positions_in_event_ids_count_tokens() -> None:
    event = b"id: %s.%d.12.abc\ndata: {}\n\n"
    rid = b"0" * 32
    result = await received(StreamProtocol(), b"\n" + event % (rid, 1), event % (rid, 3))
    assert [num_tokens for _, num_tokens in result.arrivals] == [1, 3]


@pytest.mark.parametrize("cut", range(1, 60, 7))
async def test_events_and_their_tokens_are_counted_once_wherever_the_bytes_are_cut(
    cut: int,
) -> None:
    head = b'data: {"choices":[{"delta":{"role":"assistant","content":"a"}}]}\n\n'
    other = b'data: {"choices":[{"delta":{"content":"b"}}]}\n\n'
    end = b'data: {"choices":[{"delta":{}}]}\n\ndata: [DONE]\n\n'
    result = await received(PeerProtocol(), head + other[:cut], other[cut:] + end)
    assert result.num_tokens == 2
    assert result.num_events == 3


async def test_usage_at_the_end_tells_the_tokens_of_events_that_had_no_text() -> None:
    event = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
    usage = b'data: {"choices":[],"usage":{"completion_tokens":3,"total_tokens":9}}\n\n'
    result = await received(PeerProtocol(), event, usage)
    assert result.num_tokens == 3
