"""Ranks of other hosts: who does not know the secret of a start is none, on either side."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from worker.engine_link import rank_links
from worker.engine_link.rank_links import RankLink, RankListener, connect_rank

HOST = "127.0.0.1"
SECRET, OTHER = b"s" * 32, b"o" * 32


def test_ranks_get_in_while_strangers_knock() -> None:
    listener = RankListener(HOST, 0, SECRET)
    missing: list[list[int]] = []
    with ThreadPoolExecutor() as threads:
        found = threads.submit(
            lambda: dict(listener.links((1, 2), lambda ranks: missing.append(sorted(ranks))))
        )
        silent = socket.create_connection((HOST, listener.port))
        with socket.create_connection((HOST, listener.port)) as rude:
            rude.sendall(b"GET / HTTP/1.1\r\n".ljust(rank_links._HELLO.size))
            assert rude.recv(100) == b""
        for rank, secret, why in (
            (2, OTHER, "does not know the secret"),
            (7, SECRET, "rank 7 is there already"),
        ):
            with pytest.raises(ConnectionError, match=why):
                connect_rank(HOST, listener.port, secret, rank)
        theirs = {2: connect_rank(HOST, listener.port, SECRET, 2)}
        with pytest.raises(ConnectionError, match="rank 2 is there already"):
            connect_rank(HOST, listener.port, SECRET, 2)
        theirs[1] = connect_rank(HOST, listener.port, SECRET, 1)
        ours = found.result(10)
    assert missing == [[1, 2], [1], []]
    with pytest.raises(ConnectionRefusedError):
        connect_rank(HOST, listener.port, SECRET, 1)
    for rank in (1, 2):
        for one, other in zip(ours[rank], theirs[rank], strict=True):
            one.sendall(b"%d" % rank)
            assert other.recv(10) == b"%d" % rank
        ours[rank].close()
        theirs[rank].close()
    silent.close()


Server = Callable[[socket.socket], None]


def replay(sock: socket.socket) -> None:
    """Sends back what it was sent."""
    hello = sock.recv(1000)
    sock.sendall(hello[-32:] * 2)


def hang_up(sock: socket.socket) -> None:
    sock.recv(1000)


@pytest.mark.parametrize(
    ("server", "why"),
    [(replay, "does not know the secret"), (hang_up, "has closed"), (lambda _: None, "timed out")],
)
def test_a_rank_trusts_no_false_listener(
    server: Server, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_links, "_HANDSHAKE_S", 0.3)
    with socket.create_server((HOST, 0)) as listening, ThreadPoolExecutor() as threads:
        knock = threads.submit(connect_rank, HOST, listening.getsockname()[1], SECRET, 1)
        sock, _ = listening.accept()
        server(sock)
        if why != "timed out":
            sock.close()
        with pytest.raises(OSError, match=why):
            knock.result(10)
        sock.close()


@pytest.mark.parametrize("host", [HOST, "::1"])
def test_a_rank_that_came_halfway_may_come_again(host: str) -> None:
    listener = RankListener(host, 0, SECRET)
    with ThreadPoolExecutor() as threads:
        found = threads.submit(lambda: dict(listener.links((1,), lambda _: None)))
        half = socket.create_connection((host, listener.port))
        rank_links._introduce(half, SECRET, 1, 0)
        half.close()
        theirs = connect_rank(host, listener.port, SECRET, 1)
        ours: RankLink = found.result(10)[1]
    theirs.orders.sendall(b"x")
    assert ours.orders.recv(1) == b"x"
    ours.close()
    theirs.close()
