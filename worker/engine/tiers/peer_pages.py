"""Pages that other workers have computed, fetched over TCP: of each worker by a thread."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Sequence

import numpy as np

from shared.errors import ConfigError
from shared.telemetry.log import get_logger
from worker.engine.tiers.disk_tier import MIN_STAGED
from worker.engine.tiers.kv_tier import FetchCounts, PageContent, averaged
from worker.engine.tiers.page_file import (
    PageHead,
    PageIdentity,
    RejectedPage,
    check_page,
    page_bytes,
)
from worker.engine_link.engine_messages import PagePeer
from worker.transfer.page_wire import HANDSHAKE_S, Endpoint, PageStream, PeerFailed, Wire

MAX_PEERS = 16
RETRY_S = 10.0  # after a peer has failed
IDLE_S = 30.0  # a connection that nobody uses is ended
STAGED_BYTES = 8 << 20  # of pages of one worker, that are on their way or wait to be taken

log = get_logger(__name__)


class PeerPages:
    """The pages of one worker, believed as little as those on a disk.

    Questions go out as they are ordered, and answers come in their order. Whatever it does wrong
    costs the pages that are on their way, which are computed, and it is asked no more for a while.
    """

    def __init__(
        self,
        peer: PagePeer,
        identity: PageIdentity,
        num_page_bytes: int,
        counts: FetchCounts,
    ) -> None:
        self.max_ordered = max(MIN_STAGED, STAGED_BYTES // num_page_bytes)
        self.read_s: float | None = None
        self.num_pending = 0  # orders whose page was not taken
        self._peer = peer
        self._identity = identity
        self._num_page_bytes = num_page_bytes
        self._counts = counts
        self._orders: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._is_running = False
        self._arrived: deque[PageContent | None] = deque()
        self._asked: deque[bytes] = deque()
        self._stream: PageStream | None = None
        self._paused_until = 0.0  # of the monotonic clock: it has failed
        self._failure = "unreachable"  # how

    def order(self, chain: bytes, used_ns: int) -> None:
        self.num_pending += 1
        with self._starting:
            self._orders.put(chain)
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._run, name="kv-fetch", daemon=True).start()

    def take_arrived(self) -> Sequence[PageContent | None]:
        arrived = [self._arrived.popleft() for _ in range(len(self._arrived))]
        self.num_pending -= len(arrived)
        return arrived

    def _run(self) -> None:
        while self._ask_all():
            chain = self._asked.popleft()
            content = None
            try:
                content = self._receive(chain)
                self._counts.num_read += 1
            except FileNotFoundError:
                self._counts.rejected["missing"] += 1
            except (OSError, PeerFailed, RejectedPage) as exc:
                self._fail(exc)
                self._counts.rejected[self._failure] += 1
            self._arrived.append(content)

    def _ask_all(self) -> bool:
        """All that is ordered, of which there is something then. False: nothing was, for long."""
        while True:
            try:
                chain = self._orders.get(block=not self._asked, timeout=IDLE_S)
            except queue.Empty:
                if self._asked:
                    return True
                with self._starting:
                    if self._orders.empty():
                        self._hang_up()
                        self._is_running = False
                        return False
                continue
            try:
                self._ask(chain)
            except (OSError, ValueError, ConfigError, PeerFailed) as exc:
                self._fail(exc)
            self._asked.append(chain)

    def _ask(self, chain: bytes) -> None:
        """Raises OSError, ValueError, ConfigError, PeerFailed."""
        is_first = not self._asked  # behind others that were lost it is lost, too
        if self._stream is None and is_first and time.monotonic() >= self._paused_until:
            host, port = Endpoint.parse(self._peer.address, "peer")
            wire = Wire(socket.create_connection((host, port), timeout=HANDSHAKE_S))
            try:
                self._stream = PageStream.ask(wire, self._peer.key, self._identity.mark)
            finally:
                if self._stream is None:
                    wire.close()
        if self._stream is not None:
            self._stream.want(chain)

    def _receive(self, chain: bytes) -> PageContent:
        """Raises OSError, PeerFailed, RejectedPage."""
        if self._stream is None:
            raise PeerFailed(self._failure, "it is left alone")
        head = PageHead(self._identity, chain)
        data = np.empty(page_bytes(head, self._num_page_bytes), np.uint8)
        begin = time.perf_counter()
        self._stream.receive(chain, data.data)
        content = check_page(data, head, self._num_page_bytes)
        self.read_s = averaged(self.read_s, time.perf_counter() - begin)
        return content

    def _fail(self, exc: Exception) -> None:
        if self._stream is None and time.monotonic() < self._paused_until:
            return
        self._failure = exc.reason if isinstance(exc, PeerFailed | RejectedPage) else "unreachable"
        log.warning("kv_peer_failed", peer=self._peer.address, reason=self._failure, error=str(exc))
        self._paused_until = time.monotonic() + RETRY_S
        self._hang_up()

    def _hang_up(self) -> None:
        if self._stream is not None:
            self._stream.wire.close()
            self._stream = None


class TcpTransfer:
    """Who is asked for pages: so many workers, of which one not asked for long makes room."""

    def __init__(self, identity: PageIdentity, num_page_bytes: int) -> None:
        self.fetched = FetchCounts()
        self._identity = identity
        self._num_page_bytes = num_page_bytes
        self._peers: OrderedDict[PagePeer, PeerPages] = OrderedDict()

    def source(self, peer: PagePeer) -> PeerPages | None:
        if peer not in self._peers and not self._has_place():
            self.fetched.rejected["busy"] += 1
            return None
        if peer not in self._peers:
            self._peers[peer] = PeerPages(peer, self._identity, self._num_page_bytes, self.fetched)
        self._peers.move_to_end(peer)
        return self._peers[peer]

    def _has_place(self) -> bool:
        if len(self._peers) < MAX_PEERS:
            return True
        peer = next((each for each, pages in self._peers.items() if not pages.num_pending), None)
        if peer is not None:
            del self._peers[peer]
        return peer is not None
