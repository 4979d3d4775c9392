"""The engine's side of the socket pair: commands in, events out, never in the way of a step."""

from __future__ import annotations

import select
import socket
from typing import Protocol

from shared.errors import JetflockError
from worker.engine_link.engine_frames import FrameReader, decode_command, encode_frame
from worker.engine_link.engine_messages import EngineCommand, EngineEvent

RECEIVE_BYTES = 1 << 18
MAX_UNSENT_BYTES = 1 << 20
_FD_SETSIZE = 1024  # select() knows no descriptors from here on


class ChannelClosed(JetflockError):
    """The I/O process is gone: the engine has nobody to work for."""


class EngineChannel(Protocol):
    """Where an engine hears its commands and tells its events."""

    def poll(self, timeout_s: float) -> list[EngineCommand]:
        """Commands that have come; waits up to `timeout_s` for the first. Raises ChannelClosed."""
        ...

    def send(self, event: EngineEvent) -> None:
        """Raises ChannelClosed."""
        ...


class EngineSocket:
    """An `EngineChannel` over a stream socket. Belongs to one thread.

    `send` keeps what the socket does not take, and goes on with it at the next call: the step does
    not wait for the reader. Only a reader that is `max_unsent_bytes` behind makes it wait.
    """

    def __init__(self, sock: socket.socket, max_unsent_bytes: int = MAX_UNSENT_BYTES) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._max_unsent_bytes = max_unsent_bytes
        self._reader = FrameReader()
        self._unsent = bytearray()

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        self._sock.close()

    def poll(self, timeout_s: float) -> list[EngineCommand]:
        """Commands that have come; waits up to `timeout_s` for the first. Raises ChannelClosed."""
        self._flush()
        commands = self._receive()
        if commands or timeout_s <= 0:
            return commands
        self._wait(timeout_s)
        self._flush()
        return self._receive()

    def send(self, event: EngineEvent) -> None:
        """Raises ChannelClosed."""
        self._unsent += encode_frame(event)
        self._flush()
        while len(self._unsent) > self._max_unsent_bytes:
            self._wait_for(select.POLLOUT, timeout_s=1.0)
            self._flush()

    def drain(self, timeout_s: float) -> None:
        """Sends what is still unsent: the last words of an engine that is about to exit."""
        self._wait_for(select.POLLOUT, timeout_s)
        self._flush()

    def _receive(self) -> list[EngineCommand]:
        commands: list[EngineCommand] = []
        while True:
            try:
                data = self._sock.recv(RECEIVE_BYTES)
            except BlockingIOError:
                return commands
            except OSError as exc:
                raise ChannelClosed(f"the I/O process is gone: {exc}") from exc
            if not data:
                raise ChannelClosed("the I/O process closed the socket")
            commands += [decode_command(frame) for frame in self._reader.feed(data)]
            if len(data) < RECEIVE_BYTES:
                return commands

    def _flush(self) -> None:
        while self._unsent:
            try:
                num_sent = self._sock.send(self._unsent)
            except BlockingIOError:
                return
            except OSError as exc:
                raise ChannelClosed(f"the I/O process is gone: {exc}") from exc
            del self._unsent[:num_sent]

    def _wait(self, timeout_s: float) -> None:
        self._wait_for(select.POLLIN | (select.POLLOUT if self._unsent else 0), timeout_s)

    def _wait_for(self, events: int, timeout_s: float) -> None:
        fd = self._sock.fileno()
        if fd >= _FD_SETSIZE:
            poller = select.poll()
            poller.register(fd, events)
            poller.poll(timeout_s * 1000)  # rounded up to whole milliseconds
            return
        reading = [fd] if events & select.POLLIN else []
        writing = [fd] if events & select.POLLOUT else []
        select.select(reading, writing, [], timeout_s)  # to the microsecond
