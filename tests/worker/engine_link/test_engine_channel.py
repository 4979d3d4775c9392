from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from shared.errors import MalformedMessage
from shared.protocol.finish import Finish, FinishReason
from tests.worker.engine_fakes import make_add
from worker.engine_link.engine_channel import ChannelClosed, EngineSocket
from worker.engine_link.engine_frames import FrameReader, decode_command, decode_event, encode_frame
from worker.engine_link.engine_messages import (
    AbortRequest,
    CacheReleased,
    EngineCommand,
    EngineEvent,
    EngineFailed,
    EngineLoad,
    EngineLoading,
    EngineReady,
    FlushCache,
    ReleaseCache,
    RunOutput,
    SetPaused,
    SetProfiling,
    StepOutput,
)

LOAD = EngineLoad(1, 2, 3, 4, 5, 6, 7, 8, 9)
COMMANDS: list[EngineCommand] = [
    make_add(1, [1, 2, 3], [4], top_k=5, stop_token_ids=(7, 8), seed=2**64 - 1),
    AbortRequest(2**40),
    SetPaused(True),
    FlushCache(),
    ReleaseCache(),
    SetProfiling(0.5),
]
EVENTS: list[EngineEvent] = [
    CacheReleased(),
    EngineLoading("load weights", 0.5),
    EngineReady(1, 2, 3, 4, 5),
    EngineFailed("no such folder"),
    StepOutput(3, [], LOAD),
    StepOutput(4, [RunOutput(1, [5]), RunOutput(2, [], Finish(FinishReason.STOP, 5))], LOAD),
]


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, EngineSocket]]:
    ours, theirs = socket.socketpair()
    channel = EngineSocket(theirs, max_unsent_bytes=4096)
    ours.settimeout(20.0)
    yield ours, channel
    ours.close()
    channel.close()


def test_messages_survive_the_wire() -> None:
    reader = FrameReader()
    frames = reader.feed(b"".join(encode_frame(message) for message in [*COMMANDS, *EVENTS]))
    assert [decode_command(frame) for frame in frames[: len(COMMANDS)]] == COMMANDS
    assert [decode_event(frame) for frame in frames[len(COMMANDS) :]] == EVENTS


def test_frames_may_come_in_any_pieces() -> None:
    data = b"".join(encode_frame(command) for command in COMMANDS)
    for piece_len in (1, 2, 3, 5, 7, len(data)):
        reader = FrameReader()
        frames: list[bytes] = []
        for start in range(0, len(data), piece_len):
            frames += reader.feed(data[start : start + piece_len])
        assert [decode_command(frame) for frame in frames] == COMMANDS


@pytest.mark.parametrize("frame", [b"", b"\xc1", b"\x91\xa3zzz", b"\x80"])
def test_a_frame_that_is_no_message_is_refused(frame: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_command(frame)


def test_poll_returns_at_once_when_a_command_is_there(
    sockets: tuple[socket.socket, EngineSocket],
) -> None:
    ours, channel = sockets
    assert channel.poll(0.0) == []
    ours.sendall(b"".join(encode_frame(command) for command in COMMANDS))
    assert channel.poll(60.0) == COMMANDS


def test_poll_waits_no_longer_than_told(sockets: tuple[socket.socket, EngineSocket]) -> None:
    _, channel = sockets
    begin = time.monotonic()
    assert channel.poll(0.05) == []
    assert 0.04 < time.monotonic() - begin < 20.0


@pytest.mark.timed
def test_poll_waits_for_less_than_a_millisecond(
    sockets: tuple[socket.socket, EngineSocket],
) -> None:
    _, channel = sockets
    waits_s = []
    for _ in range(50):
        begin = time.perf_counter()
        assert channel.poll(0.0002) == []
        waits_s.append(time.perf_counter() - begin)
    assert 0.0002 <= min(waits_s) < 0.0009


def test_send_keeps_what_the_socket_does_not_take(
    sockets: tuple[socket.socket, EngineSocket],
) -> None:
    ours, channel = sockets
    channel._max_unsent_bytes = 1 << 24
    events = [EngineLoading("x" * 10_000, float(number)) for number in range(200)]
    for event in events:
        channel.send(event)
    reader = FrameReader()
    received: list[EngineEvent] = []
    while len(received) < len(events):
        received += [decode_event(frame) for frame in reader.feed(ours.recv(1 << 16))]
        channel.poll(0.0)
    assert received == events


def test_the_end_of_the_io_process_is_an_exception(
    sockets: tuple[socket.socket, EngineSocket],
) -> None:
    ours, channel = sockets
    ours.close()
    with pytest.raises(ChannelClosed):
        channel.poll(60.0)
    with pytest.raises(ChannelClosed):
        channel.send(EngineLoading("", 0.0))
