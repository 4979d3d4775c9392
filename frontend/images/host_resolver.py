"""Addresses of hosts that clients name: slow name servers hold up nobody but who asks for them."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import threading
from collections import Counter
from collections.abc import Callable

LookUp = Callable[[str, int], list[str]]

_TIMEOUT_S = 5.0
_MAX_AT_ONCE = 16
_MAX_OF_ONE = 4


class HostNotFound(Exception):
    """There is no such host, or nobody said so in time."""


class HostResolver:
    """Each look-up has a thread of its own, of which there are few, and fewer for one tenant.

    A thread is lost until its look-up ends: neither a time-out nor the end of the process waits
    for it.
    """

    def __init__(
        self,
        look_up: LookUp | None = None,
        *,
        timeout_s: float = _TIMEOUT_S,
        max_at_once: int = _MAX_AT_ONCE,
        max_of_one: int = _MAX_OF_ONE,
    ) -> None:
        self._look_up = look_up or _look_up
        self._timeout_s = timeout_s
        self._max_at_once = max_at_once
        self._max_of_one = max_of_one
        self._running: Counter[str] = Counter()  # by tenant
        self._freed = asyncio.Event()

    async def resolve(self, host: str, port: int, tenant: str = "") -> list[str]:
        """All addresses of a host, the best first. Raises HostNotFound."""
        if _is_address(host):
            return [host.strip("[]")]
        try:
            async with asyncio.timeout(self._timeout_s):
                while not self._has_room(tenant):
                    self._freed.clear()
                    await self._freed.wait()
                return await self._begin(host, port, tenant)
        except TimeoutError as exc:
            raise HostNotFound("names a host that was not found in time") from exc
        except (OSError, UnicodeError) as exc:
            raise HostNotFound("names a host that cannot be found") from exc

    def _has_room(self, tenant: str) -> bool:
        return (
            self._running.total() < self._max_at_once and self._running[tenant] < self._max_of_one
        )

    def _begin(self, host: str, port: int, tenant: str) -> asyncio.Future[list[str]]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[str]] = loop.create_future()
        self._running[tenant] += 1

        def end(addresses: list[str], error: Exception | None) -> None:
            self._running[tenant] -= 1
            if not self._running[tenant]:
                del self._running[tenant]
            self._freed.set()
            if answer.done():  # it came too late
                return
            if error is None:
                answer.set_result(addresses)
            else:
                answer.set_exception(error)

        def work() -> None:
            addresses: list[str] = []
            error: Exception | None = None
            try:
                addresses = self._look_up(host, port)
            except (OSError, UnicodeError) as exc:
                error = exc
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(end, addresses, error)

        threading.Thread(target=work, name="resolve", daemon=True).start()
        return answer


def _is_address(host: str) -> bool:
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host.strip("[]"))
        return True
    return False


def _look_up(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return [str(address[0]) for *_, address in found]
