"""Addresses of hosts that clients name, and whether a frontend may connect to them.

Slow name servers hold up nobody but who asks for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import threading
from collections import Counter
from collections.abc import Callable

_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")  # how an IPv6-only network names IPv4 addresses
# What `is_global` of Python 3.11 takes for public. IANA's registries of special-purpose addresses,
# and what clouds have put among public ones: their metadata and wire servers.
_SPECIAL = tuple(
    map(
        ipaddress.ip_network,
        (
            "192.0.0.0/24",  # IETF protocol assignments; 192.0.0.192: Oracle's metadata
            "192.31.196.0/24",  # AS112, answered by the next network
            "192.52.193.0/24",  # AMT relays
            "192.88.99.0/24",  # 6to4 relays: whoever is next to us
            "192.175.48.0/24",  # AS112
            "168.63.129.16/32",  # Azure's wire server
            "2001::/23",  # IETF protocol assignments: Teredo, ORCHID, AMT, drones
            "2002::/16",  # 6to4, a disguise of an IPv4 address
            "2620:4f:8000::/48",  # AS112
            "3fff::/20",  # documentation
            "5f00::/16",  # segment routing
        ),
    )
)

LookUp = Callable[[str, int], list[str]]

_TIMEOUT_S = 5.0
_MAX_AT_ONCE = 16
_MAX_OF_ONE = 4


def is_public(address: str) -> bool:
    """Whether anybody can reach it: it is neither loopback, private, link-local, shared, reserved
    nor multicast, in no disguise.
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if any(ip in network for network in _SPECIAL):
        return False
    if isinstance(ip, ipaddress.IPv4Address):
        return ip.is_global and not ip.is_multicast
    inner = ip.ipv4_mapped
    if ip in _NAT64:
        inner = ipaddress.IPv4Address(ip.packed[-4:])
    if inner is not None:
        return is_public(str(inner))
    return ip in _GLOBAL_UNICAST and ip.is_global


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
