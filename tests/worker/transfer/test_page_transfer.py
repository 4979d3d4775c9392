"""Pages over TCP: as they were written or not at all, whoever is on the other side."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest

from shared.errors import ConfigError
from tests.eventually import Looks, wait_until
from tests.worker.engine.tiers.test_disk_tier import (
    FILE_BYTES,
    IDENTITY,
    NUM_BYTES,
    ROOT,
    chain_of,
    content_of,
    page_paths,
    write,
)
from worker.engine.tiers import peer_pages
from worker.engine.tiers.kv_tier import FetchCounts, PageContent
from worker.engine.tiers.page_file import PageIdentity
from worker.engine.tiers.peer_pages import MAX_PEERS, PeerPages, TcpTransfer
from worker.engine_link.engine_messages import FETCH_REASONS, PagePeer
from worker.transfer import page_server, page_wire
from worker.transfer.page_server import REFUSED_CONNECTIONS, PageServer
from worker.transfer.page_wire import Endpoint, PageStream, Wire, page_name

KEY = bytes(range(32))


class Counts:
    """What a server has counted."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.refused: Counter[str] = Counter()

    def note_sent(self, num_bytes: int) -> None:
        self.sent.append(num_bytes)

    def note_refused(self, reason: str) -> None:
        assert reason in REFUSED_CONNECTIONS
        self.refused[reason] += 1


@pytest.fixture
def is_impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing may take long: whoever is to succeed does so before or behind it."""
    with monkeypatch.context() as patch:
        for module in (page_wire, peer_pages):
            patch.setattr(module, "HANDSHAKE_S", 0.3)
        patch.setattr(page_wire, "PAGE_S", 0.3)
        yield


@contextmanager
def serving(path: Path, mark: str = IDENTITY.mark) -> Iterator[PageServer]:
    server = PageServer(Endpoint("127.0.0.1", 0), path / "kv", Counts())
    server.mark = mark
    yield server
    server.close()


def pages_of(peer: PagePeer, identity: PageIdentity = IDENTITY) -> PeerPages:
    return PeerPages(peer, identity, NUM_BYTES, FetchCounts())


def peer_of(server: PageServer) -> PagePeer:
    return PagePeer(str(server.endpoint), server.key)


def fetch(pages: PeerPages, *numbers: int) -> list[PageContent | None]:
    for number in numbers:
        pages.order(chain_of(number), 0)
    arrived: list[PageContent | None] = []
    for _ in Looks(60):
        arrived += pages.take_arrived()
        if len(arrived) == len(numbers):
            break
    assert set(pages._counts.rejected) <= set(FETCH_REASONS)
    return arrived


def test_pages_come_as_they_were_written_and_in_their_order(tmp_path: Path) -> None:
    write(tmp_path, 1, 2, 4)
    with serving(tmp_path) as server:
        pages = pages_of(peer_of(server))
        arrived = fetch(pages, 2, 3, 1, 4)
        assert arrived[1] is None
        for number, page in ((2, arrived[0]), (1, arrived[2]), (4, arrived[3])):
            assert np.array_equal(page, content_of(number))  # type: ignore[arg-type]
        assert (pages._counts.num_read, pages._counts.rejected) == (3, {"missing": 1})
        assert pages.read_s is not None
        counts = server._counts
        assert isinstance(counts, Counts)
        wait_until(lambda: counts.sent == [FILE_BYTES, 0, FILE_BYTES, FILE_BYTES])
        assert not counts.refused


@contextmanager
def lying(act: Callable[[socket.socket], None]) -> Iterator[PagePeer]:
    """A server that is none of ours."""
    listener = socket.create_server(("127.0.0.1", 0))
    host, port = listener.getsockname()

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
                act(connection)
            except OSError:
                return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield PagePeer(f"{host}:{port}", KEY)
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def proving(act: Callable[[PageStream], None]) -> Callable[[socket.socket], None]:
    """It has the key, and lies then."""

    def serve(connection: socket.socket) -> None:
        stream = PageStream.answer(Wire(connection), KEY, IDENTITY.mark)
        stream.wire.read(32, 5.0)
        act(stream)

    return serve


def head_of(stream: PageStream, length: int, checksum: bytes) -> bytes:
    return length.to_bytes(4, "little") + stream._next_proof(chain_of(1), checksum)


def drip(connection: socket.socket) -> None:
    """A byte in less time than any single read may take."""
    for _ in range(200):
        connection.send(b"x")
        time.sleep(0.02)


LIES: dict[str, tuple[Callable[[socket.socket], None], str]] = {
    "says nothing": (lambda _: None, "unreachable"),
    "hangs up": (lambda connection: connection.close(), "unreachable"),
    "drips": (drip, "unreachable"),
    "has no key": (lambda connection: connection.sendall(bytes(64)), "unproven"),
    "endless": (
        proving(lambda stream: stream.wire.write(b"\xff" * 36 + bytes(1 << 16), 1.0)),
        "foreign",
    ),
    "a byte too long": (
        proving(lambda stream: stream.wire.write(head_of(stream, FILE_BYTES + 1, b""), 1.0)),
        "foreign",
    ),
    "half a page": (
        proving(lambda stream: stream.wire.write(head_of(stream, FILE_BYTES, b"") + b"x", 1.0)),
        "unreachable",
    ),
    "without a proof": (
        proving(lambda stream: stream.wire.write(bytes(36), 1.0)),
        "damaged",
    ),
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.usefixtures("is_impatient")
def test_a_lie_costs_what_is_on_its_way(lie: str) -> None:
    act, reason = LIES[lie]
    held: list[socket.socket] = []  # as long as the test runs

    def serve(connection: socket.socket) -> None:
        held.append(connection)
        act(connection)

    with lying(serve) as peer:
        pages = pages_of(peer)
        assert fetch(pages, 1, 2) == [None, None]
        assert pages._counts.rejected == {reason: 2}
        begin = time.monotonic()
        assert fetch(pages, 1) == [None]
        assert time.monotonic() - begin < 0.2, "it is left alone for a while"
        assert len(held) == 1
        for each in held:
            each.close()


@pytest.mark.parametrize("place", [0, 9, FILE_BYTES // 2, FILE_BYTES - 33, FILE_BYTES - 1])
def test_no_flipped_bit_is_believed(tmp_path: Path, place: int) -> None:
    """On the sender's disk: what it proves is its checksum. On the way nothing else can differ."""
    write(tmp_path, 1)
    path = page_paths(tmp_path)[0]
    data = path.read_bytes()
    path.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
    with serving(tmp_path) as server:
        pages = pages_of(peer_of(server))
        assert fetch(pages, 1) == [None]
        assert pages._counts.rejected == {"damaged": 1}


def test_a_page_that_is_swapped_on_the_way_is_not_believed(tmp_path: Path) -> None:
    """Whole, with its checksum, and the proof of another answer."""
    write(tmp_path, 1)
    data = page_paths(tmp_path)[0].read_bytes()

    def swap(stream: PageStream) -> None:
        stream._next_proof(chain_of(1), b"")  # the answer before
        stream.wire.write(head_of(stream, FILE_BYTES, data[-32:]) + data, 1.0)

    with lying(proving(swap)) as peer:
        pages = pages_of(peer)
        assert fetch(pages, 1) == [None]
        assert pages._counts.rejected == {"damaged": 1}


def test_a_page_of_another_text_or_namespace_is_not_taken(tmp_path: Path) -> None:
    write(tmp_path, 1)
    path = page_paths(tmp_path)[0]
    path.rename(path.with_name(page_name(IDENTITY.mark, chain_of(2))))
    with serving(tmp_path) as server:
        pages = pages_of(peer_of(server))
        assert fetch(pages, 2) == [None]
        assert pages._counts.rejected == {"other_prefix": 1}


def test_another_engine_gets_nothing(tmp_path: Path) -> None:
    other = msgspec.structs.replace(IDENTITY, kernel_set="avx512")
    write(tmp_path, 1, identity=other)
    with serving(tmp_path) as server:
        pages = pages_of(peer_of(server), other)
        assert fetch(pages, 1) == [None]
        assert pages._counts.rejected == {"unreachable": 1}
        counts = server._counts
        assert isinstance(counts, Counts)
        assert counts.refused == {"foreign": 1}
        assert counts.sent == []


def send_rubbish(connection: socket.socket) -> None:
    connection.sendall(b"GET / HTTP/1.1\r\n" + bytes(1000))


def use_wrong_key(connection: socket.socket) -> None:
    connection.sendall(page_wire.MAGIC + IDENTITY.mark.encode() + bytes(32))
    connection.recv(64, socket.MSG_WAITALL)
    connection.sendall(bytes(32))


@pytest.mark.parametrize("act", [send_rubbish, use_wrong_key, drip, lambda _: None])
def test_a_stranger_gets_nothing_and_takes_no_place_for_long(
    tmp_path: Path, act: Callable[[socket.socket], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_server, "MAX_CONNECTIONS", 1)
    write(tmp_path, 1)
    patience_s = page_wire.HANDSHAKE_S
    monkeypatch.setattr(page_wire, "HANDSHAKE_S", 0.3)
    with serving(tmp_path) as server:
        counts = server._counts
        assert isinstance(counts, Counts)
        with socket.create_connection(server.endpoint) as stranger:
            thread = threading.Thread(target=lambda: _suppressed(act, stranger))
            thread.start()
            wait_until(lambda: counts.refused["unproven"] == 1)
        thread.join()
        wait_until(lambda: server._places.acquire(blocking=False))
        with socket.create_connection(server.endpoint):
            wait_until(lambda: counts.refused["busy"] == 1)
        server._places.release()
        monkeypatch.setattr(page_wire, "HANDSHAKE_S", patience_s)
        assert fetch(pages_of(peer_of(server)), 1)[0] is not None
        assert counts.sent == [FILE_BYTES]


def _suppressed(act: Callable[[socket.socket], None], connection: socket.socket) -> None:
    try:
        act(connection)
    except OSError:
        return


def test_who_does_not_read_ends_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_wire, "PAGE_S", 0.3)
    write(tmp_path, 1)
    with serving(tmp_path) as server:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        connection.connect(server.endpoint)
        stream = PageStream.ask(Wire(connection), server.key, IDENTITY.mark)
        stream.wire.write(chain_of(1) * 4000, 1.0)
        wait_until(lambda: server._places._value == page_server.MAX_CONNECTIONS)
        stream.wire.close()


def serve_for_ever(path: Path) -> None:
    with serving(path) as server:
        server.key = KEY
        sys.stdout.write(f"{server.endpoint}\n")
        sys.stdout.flush()
        signal.pause()


@pytest.mark.e2e
def test_a_sender_killed_in_mid_transfer_costs_what_is_on_its_way(tmp_path: Path) -> None:
    numbers = range(1, 200)
    write(tmp_path, *numbers, max_bytes=1 << 30)
    code = f"from {__name__} import *; serve_for_ever(Path({str(tmp_path)!r}))"
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    pages = pages_of(PagePeer(process.stdout.readline().strip(), KEY))
    for number in numbers:
        pages.order(chain_of(number), 0)
    wait_until(lambda: pages._counts.num_read > 20)
    process.kill()
    process.wait()
    process.stdout.close()
    wait_until(lambda: len(pages._arrived) == len(numbers))
    arrived = pages.take_arrived()
    num_read = pages._counts.num_read
    assert pages._counts.rejected.total() == len(numbers) - num_read
    for number, page in zip(numbers, arrived, strict=True):
        assert (page is None) == (number > num_read)
        assert page is None or np.array_equal(page, content_of(number))


def test_a_peer_that_is_idle_makes_room_for_another() -> None:
    transfer = TcpTransfer(IDENTITY, NUM_BYTES)
    sources = [
        transfer.source(PagePeer(f"127.0.0.1:{number}", KEY)) for number in range(1, MAX_PEERS + 1)
    ]
    assert transfer.source(PagePeer("127.0.0.1:1", KEY)) is sources[0]
    for source in sources[:1] + sources[2:]:
        assert source is not None
        source.num_pending = 1
    assert transfer.source(PagePeer("127.0.0.1:99", KEY)) is not None
    for source in transfer._peers.values():
        source.num_pending = 1
    assert transfer.source(PagePeer("127.0.0.1:100", KEY)) is None
    assert transfer.fetched.rejected == {"busy": 1}


def test_a_place_to_listen_is_one_that_others_can_reach(tmp_path: Path) -> None:
    assert str(Endpoint.parse("[::1]:9092")) == "[::1]:9092"
    for text in ("", "9092", "host:", ":9092", "host:x", "host:65536"):
        with pytest.raises(ConfigError, match=r"kv_transfer_bind=.* must be HOST:PORT"):
            Endpoint.parse(text)
    for text in ("0.0.0.0:9092", "[::]:9092", "*:9092"):
        with pytest.raises(ConfigError, match="must name the address that other workers"):
            Endpoint.parse(text)
    with serving(tmp_path) as server, pytest.raises(ConfigError, match="is not possible"):
        PageServer(server.endpoint, tmp_path, Counts())
