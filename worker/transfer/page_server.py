"""Sends pages of keys and values to workers that ask for them, as they lie in the folder."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from pathlib import Path
from typing import Protocol

from shared.errors import ConfigError
from shared.telemetry.log import get_logger
from worker.transfer.page_wire import (
    CHAIN_BYTES,
    Endpoint,
    PageStream,
    PeerFailed,
    Wire,
    page_name,
)

REFUSED_CONNECTIONS = ("unproven", "foreign", "busy")
MAX_CONNECTIONS = 32
IDLE_S = 60.0
_KEY_BYTES = 32

log = get_logger(__name__)


class ServerCounts(Protocol):
    """What is counted of those that ask; from any thread."""

    def note_sent(self, num_bytes: int) -> None: ...

    def note_refused(self, reason: str) -> None:
        """One of `REFUSED_CONNECTIONS`."""
        ...


class PageServer:
    """Listens from its making on, with a thread for each connection, apart from the loop that
    tokens go through.

    A page is a file that is there as a whole or not at all; who receives it checks it. Whoever has
    not proved the key has cost a connection for `HANDSHAKE_S` at most.
    """

    def __init__(self, bind: Endpoint, folder: Path, counts: ServerCounts) -> None:
        """Raises ConfigError."""
        self._is_closed = False
        self._folder = folder
        self.mark = ""  # of the engine's pages; before it is ready nobody gets one
        self._counts = counts
        self.key = secrets.token_bytes(_KEY_BYTES)
        try:
            family = socket.AF_INET6 if ":" in bind.host else socket.AF_INET
            self._listener = socket.create_server(tuple(bind), family=family)
        except OSError as exc:
            raise ConfigError(f"kv_transfer_bind={bind} is not possible: {exc}") from exc
        self.endpoint = Endpoint(bind.host, self._listener.getsockname()[1])
        self._places = threading.BoundedSemaphore(MAX_CONNECTIONS)
        threading.Thread(target=self._accept_all, name="kv-accept", daemon=True).start()

    def close(self) -> None:
        """No connection comes any more; those that are there end with the process."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept_all(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except ConnectionError:
                continue
            except OSError as exc:  # closed, or no file descriptor is left
                if self._is_closed:
                    return
                log.warning("kv_transfer_not_accepted", error=str(exc))
                self._counts.note_refused("busy")
                time.sleep(1.0)
                continue
            if not self._places.acquire(blocking=False):
                self._counts.note_refused("busy")
                connection.close()
                continue
            threading.Thread(
                target=self._serve, args=(Wire(connection),), name="kv-send", daemon=True
            ).start()

    def _serve(self, wire: Wire) -> None:
        try:
            stream = PageStream.answer(wire, self.key, self.mark)
        except (OSError, PeerFailed) as exc:
            reason = exc.reason if isinstance(exc, PeerFailed) else "unproven"
            self._counts.note_refused(reason)
            log.info("kv_transfer_refused", reason=reason, error=str(exc))
        else:
            with contextlib.suppress(OSError):  # it is gone, or too slow
                self._answer_all(stream)
        finally:
            wire.close()
            self._places.release()

    def _answer_all(self, stream: PageStream) -> None:
        """Raises OSError, in the end."""
        while True:
            chain = stream.wire.read(CHAIN_BYTES, IDLE_S)
            path = self._folder / page_name(stream.mark, chain)
            try:
                fd: int | None = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                fd = None
            try:
                self._counts.note_sent(stream.send(chain, fd))
            finally:
                if fd is not None:
                    os.close(fd)
