"""What two workers say to each other over a connection for pages: who they are, and a page.

| from | bytes | what |
|---|---|---|
| who fetches | 53 | `MAGIC`, the mark of its pages, a nonce |
| who sends | 64 | a nonce, its proof |
| who fetches | 32 | its proof; then, at any time, the chain of a page it wants |
| who sends | 36, the page | for each chain, in order: length, proof and page; length 0: no such |

Nothing is encrypted. A proof is an HMAC by the key that workers tell each other over NATS.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import os
import secrets
import select
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

from shared.errors import ConfigError
from shared.protocol.mutual_proof import (
    NONCE_BYTES,
    PROOF_BYTES,
    Receive,
    Send,
    UnprovenPeer,
    proof,
    prove_to_caller,
    prove_to_listener,
)

MAGIC = b"jfkv\x01"
MARK_BYTES = 16  # hexadecimal digits: what all pages of one engine have in common
CHAIN_BYTES = 32
LENGTH_BYTES = 4
HANDSHAKE_S = 2.0
PAGE_S = 5.0


class PeerFailed(Exception):
    """It is no peer of ours, or not there any more; `reason` is one of `FETCH_REASONS`."""

    def __init__(self, reason: str, told: str) -> None:
        super().__init__(told)
        self.reason = reason


class Endpoint(NamedTuple):
    """Where a worker listens."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, name: str = "kv_transfer_bind") -> Endpoint:
        """Raises ConfigError."""
        host, _, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isascii() or not port.isdecimal() or int(port) > 65535:
            raise ConfigError(f"{name}={text!r} must be HOST:PORT, with a port of 0 to 65535")
        if host == "*" or _is_every(host):
            raise ConfigError(
                f"{name}={text} must name the address that other workers reach this one by: they "
                "are told it"
            )
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _is_every(host: str) -> bool:
    """Whether it stands for all addresses of a machine."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_unspecified
    return False


def page_name(mark: str, chain: bytes) -> str:
    """The file that has this page."""
    return f"{mark}-{chain.hex()}.page"


class Wire:
    """A connection on which nothing takes longer than it may, however slowly it comes."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def read(self, num_bytes: int, timeout_s: float) -> bytes:
        """Raises OSError."""
        data = bytearray(num_bytes)
        self.read_into(memoryview(data), timeout_s)
        return bytes(data)

    def read_into(self, view: memoryview, timeout_s: float) -> None:
        """Fills it. Raises OSError."""
        end = time.monotonic() + timeout_s
        while view:
            self._wait(select.POLLIN, end)
            try:
                num_read = self._socket.recv_into(view)
            except BlockingIOError:
                continue
            if not num_read:
                raise ConnectionError("the other side has ended the connection")
            view = view[num_read:]

    def write(self, data: bytes, timeout_s: float) -> None:
        """Raises OSError."""
        view, end = memoryview(data), time.monotonic() + timeout_s
        while view:
            self._wait(select.POLLOUT, end)
            try:
                view = view[self._socket.send(view) :]
            except BlockingIOError:
                continue

    def write_file(self, file_fd: int, num_bytes: int, timeout_s: float) -> None:
        """From its beginning. Raises OSError."""
        start, end = 0, time.monotonic() + timeout_s
        while start < num_bytes:
            self._wait(select.POLLOUT, end)
            try:
                num_sent = os.sendfile(self._socket.fileno(), file_fd, start, num_bytes - start)
            except BlockingIOError:
                continue
            if not num_sent:
                raise ConnectionError("the file is shorter than it was")
            start += num_sent

    def close(self) -> None:
        self._socket.close()

    def _wait(self, events: int, end: float) -> None:
        """Raises TimeoutError."""
        poll = select.poll()
        poll.register(self._socket, events)
        left_s = end - time.monotonic()
        if left_s <= 0 or not poll.poll(left_s * 1e3):
            raise TimeoutError("the other side is too slow")


class PageStream:
    """A connection whose other side has proved that it has the key."""

    def __init__(self, wire: Wire, session_key: bytes, mark: str) -> None:
        self.wire = wire
        self.mark = mark
        self._key = session_key
        self._num_answers = 0

    @classmethod
    def ask(cls, wire: Wire, key: bytes, mark: str) -> PageStream:
        """The side that fetches. Raises OSError, PeerFailed."""
        end = time.monotonic() + HANDSHAKE_S
        hello = MAGIC + mark.encode() + secrets.token_bytes(NONCE_BYTES)
        said = _proven(prove_to_listener, hello, wire, key, end)
        return cls(wire, proof(key, b"answers", said), mark)

    @classmethod
    def answer(cls, wire: Wire, key: bytes, mark: str) -> PageStream:
        """The side that sends. Raises OSError, PeerFailed."""
        end = time.monotonic() + HANDSHAKE_S
        hello = wire.read(len(MAGIC) + MARK_BYTES + NONCE_BYTES, HANDSHAKE_S)
        if hello[: len(MAGIC)] != MAGIC:
            raise PeerFailed("unproven", "it speaks another language")
        said = _proven(prove_to_caller, hello, wire, key, end)
        if hello[len(MAGIC) :][:MARK_BYTES] != mark.encode():
            raise PeerFailed("foreign", "its engine makes other pages")
        return cls(wire, proof(key, b"answers", said), mark)

    def want(self, chain: bytes) -> None:
        """Asks for a page. Raises OSError."""
        self.wire.write(chain, PAGE_S)

    def receive(self, chain: bytes, view: memoryview) -> None:
        """The answer to the oldest question; `view` has its length. Raises OSError, PeerFailed."""
        head = self.wire.read(LENGTH_BYTES + PROOF_BYTES, PAGE_S)
        length = int.from_bytes(head[:LENGTH_BYTES], "little")
        if length not in (0, view.nbytes):
            raise PeerFailed("foreign", f"it says that a page has {length} bytes")
        if length:
            self.wire.read_into(view, PAGE_S)
        checksum = bytes(view[-PROOF_BYTES:]) if length else b""
        if not hmac.compare_digest(head[LENGTH_BYTES:], self._next_proof(chain, checksum)):
            raise PeerFailed("damaged", "what it says is not proved by its key")
        if not length:
            raise FileNotFoundError("it has no such page")

    def send(self, chain: bytes, file_fd: int | None) -> int:
        """Answers with a page file, or that there is none; returns its bytes. Raises OSError."""
        length = 0 if file_fd is None else os.fstat(file_fd).st_size
        checksum = b"" if file_fd is None else os.pread(file_fd, PROOF_BYTES, length - PROOF_BYTES)
        head = length.to_bytes(LENGTH_BYTES, "little") + self._next_proof(chain, checksum)
        self.wire.write(head, PAGE_S)
        if file_fd is not None:
            self.wire.write_file(file_fd, length, PAGE_S)
        return length

    def _next_proof(self, chain: bytes, checksum: bytes) -> bytes:
        """The proof of the next answer: a page's checksum is of all of it."""
        number = self._num_answers.to_bytes(8, "little")
        self._num_answers += 1
        return proof(self._key, b"page", number + chain + checksum)


def _proven(
    prove: Callable[[bytes, bytes, Send, Receive], bytes],
    hello: bytes,
    wire: Wire,
    key: bytes,
    end: float,
) -> bytes:
    """What both sides have said until then. Raises OSError, PeerFailed."""
    try:
        return prove(
            hello,
            key,
            lambda data: wire.write(data, end - time.monotonic()),
            lambda num_bytes: wire.read(num_bytes, end - time.monotonic()),
        )
    except UnprovenPeer as exc:
        raise PeerFailed("unproven", "it has another key") from exc
