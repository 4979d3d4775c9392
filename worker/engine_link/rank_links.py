"""The sockets between rank 0 and each other rank of a model, on one host or between hosts.

Between hosts each side proves to the other that it knows the secret of this start. What they send
then is not encrypted.
"""

from __future__ import annotations

import queue
import secrets
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple, Self

from shared.protocol.mutual_proof import (
    NONCE_BYTES,
    UnprovenPeer,
    prove_to_caller,
    prove_to_listener,
)
from worker.engine_link.engine_config import EngineConfig
from worker.engine_link.engine_launch import engine_environment

CANNOT_LOAD = 2  # exit code of a rank whose configuration or model cannot be used; its last word
_MAGIC = b"jetflock rank 1\n"
_HELLO = struct.Struct(f"<{len(_MAGIC)}sHB{NONCE_BYTES}s")  # magic, rank, which socket, nonce
_TAKEN, _SEATED = b"\0", b"\1"
_HANDSHAKE_S = 10.0
_MAX_UNPROVEN = 32  # connections that have not shown who they are
_IDLE_S, _PROBE_S, _NUM_PROBES = 5, 5, 3  # of keepalive: a host without power is noticed
_UNREAD_S = 30  # orders are always read


class RankLink(NamedTuple):
    """Both ends have one."""

    orders: socket.socket  # of rank 0, to the other
    sums: socket.socket  # what both compute in common

    @classmethod
    def pair(cls) -> tuple[Self, Self]:
        """Both ends, on one host."""
        orders, sums = socket.socketpair(), socket.socketpair()
        return cls(orders[0], sums[0]), cls(orders[1], sums[1])

    def close(self) -> None:
        for each in self:
            each.close()


def start_rank(config: EngineConfig, rank: int, link: RankLink) -> subprocess.Popen[bytes]:
    """The process of a rank on this host, which takes the link. It ends with this thread."""
    fds = [each.fileno() for each in link]
    try:
        return subprocess.Popen(  # noqa: S603 - our own module
            [
                *(sys.executable, "-P", "-m", "worker.engine.cuda.ranks"),
                *map(str, (rank, *fds)),
                config.to_json(),
            ],
            pass_fds=fds,
            env=engine_environment(),
        )
    finally:
        link.close()


def connect_rank(address: str, port: int, secret: bytes, rank: int) -> RankLink:
    """A rank of this host with rank 0 of another one. Raises OSError."""
    sockets: list[socket.socket] = []
    try:
        for which in range(len(RankLink._fields)):
            sockets.append(socket.create_connection((address, port), _HANDSHAKE_S))
            _introduce(sockets[-1], secret, rank, which)
        return RankLink(*map(_settled, sockets, (_UNREAD_S, None)))
    except BaseException:
        for each in sockets:
            each.close()
        raise


def listen_at(address: str, port: int, backlog: int | None = None) -> socket.socket:
    """Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family, backlog=backlog)


class RankListener:
    """Where ranks of other hosts reach rank 0, until all are there."""

    def __init__(self, address: str, port: int, secret: bytes) -> None:
        """Raises OSError."""
        self._secret = secret
        self._server = listen_at(address, port, _MAX_UNPROVEN)
        self.port: int = self._server.getsockname()[1]
        self._room = threading.Semaphore(_MAX_UNPROVEN)
        self._proven: queue.SimpleQueue[tuple[int, int, socket.socket]] = queue.SimpleQueue()

    def links(
        self, ranks: Collection[int], on_missing: Callable[[Collection[int]], None]
    ) -> Iterator[tuple[int, RankLink]]:
        """Each of these as soon as it is there. Who else connects waits for nothing here, and keeps
        nobody waiting.
        """
        threading.Thread(target=self._accept, name="ranks", daemon=True).start()
        missing = {rank: dict[int, socket.socket]() for rank in ranks}
        on_missing(missing)
        while missing:
            rank, which, sock = self._proven.get()
            seats = missing.get(rank)
            if not _say(sock, _TAKEN if seats is None else _SEATED) or seats is None:
                sock.close()
                continue
            if which in seats:  # of one that has ended before it had both
                seats[which].close()
            seats[which] = sock
            if len(seats) == len(RankLink._fields):
                del missing[rank]
                on_missing(missing)
                yield rank, RankLink(_settled(seats[0], _UNREAD_S), _settled(seats[1], None))
        self._server.shutdown(socket.SHUT_RDWR)  # wakes up who accepts
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._server.accept()
            except OSError:  # it is closed: all are there
                return
            if not self._room.acquire(blocking=False):
                sock.close()
                continue
            threading.Thread(target=self._welcome, args=(sock,), daemon=True).start()

    def _welcome(self, sock: socket.socket) -> None:
        try:
            self._proven.put((*_examine(sock, self._secret), sock))
        except OSError:
            sock.close()
        finally:
            self._room.release()


def _introduce(sock: socket.socket, secret: bytes, rank: int, which: int) -> None:
    """The side that has connected. Raises OSError."""
    until = time.monotonic() + _HANDSHAKE_S
    hello = _HELLO.pack(_MAGIC, rank, which, secrets.token_bytes(NONCE_BYTES))
    try:
        prove_to_listener(hello, secret, sock.sendall, lambda num: _receive(sock, num, until))
    except UnprovenPeer as exc:
        raise ConnectionError("who listens there does not know the secret of this start") from exc
    if _receive(sock, 1, until) != _SEATED:
        raise ConnectionError(f"rank {rank} is there already")


def _examine(sock: socket.socket, secret: bytes) -> tuple[int, int]:
    """The side that listens: which rank it is, and which of its sockets. Raises OSError."""
    until = time.monotonic() + _HANDSHAKE_S
    hello = _receive(sock, _HELLO.size, until)
    magic, rank, which, _ = _HELLO.unpack(hello)
    if magic != _MAGIC or which >= len(RankLink._fields):
        raise ConnectionError("it is no rank")
    try:
        prove_to_caller(hello, secret, sock.sendall, lambda num: _receive(sock, num, until))
    except UnprovenPeer as exc:
        raise ConnectionError("it does not know the secret of this start") from exc
    return rank, which


def _receive(sock: socket.socket, num_bytes: int, until: float) -> bytes:
    """Exactly so many bytes, in time. Raises OSError."""
    received = b""
    while len(received) < num_bytes:
        sock.settimeout(max(0.001, until - time.monotonic()))
        data = sock.recv(num_bytes - len(received))
        if not data:
            raise ConnectionError("the other side has closed the connection")
        received += data
    return received


def _say(sock: socket.socket, word: bytes) -> bool:
    """Whether it could be said."""
    try:
        sock.sendall(word)
    except OSError:
        return False
    return True


def _settled(sock: socket.socket, unread_s: int | None) -> socket.socket:
    """Without a timeout of its own; its end is noticed whatever happens to the other host."""
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, _IDLE_S),
        (socket.TCP_KEEPINTVL, _PROBE_S),
        (socket.TCP_KEEPCNT, _NUM_PROBES),
    ):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    if unread_s is not None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unread_s * 1000)
    return sock
