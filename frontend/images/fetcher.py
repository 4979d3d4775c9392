"""Images and videos by URL, fetched for clients who must not reach by us what they cannot reach.

A host's name is resolved once, all its addresses are checked, and the connection goes to one of
them: a name that means another address a moment later changes nothing. Redirects are followed by
hand, each checked like the first URL. No proxy, cookie or credential of the environment is used.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from frontend.images.host_resolver import HostNotFound, HostResolver, is_public
from frontend.limits.work_limits import FetchPolicy
from shared.telemetry.without_rich import without_rich

with without_rich():  # it is for httpx as a command
    import httpx

_MAX_REDIRECTS = 3
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MAX_CONNECTIONS = 64
_HEADERS = {
    "accept": "image/*, video/*, audio/*",
    "accept-encoding": "identity",
    "user-agent": "jetflock",
}


class FetchFailed(Exception):
    """The message goes on behind "the URL"."""


@dataclass(frozen=True, slots=True)
class _Target:
    """A checked URL, and the address that its host had when it was checked."""

    url: httpx.URL
    address: str

    def request(self) -> httpx.Request:
        """To the address; host name and certificate are the URL's."""
        return httpx.Request(
            "GET",
            self.url.copy_with(host=self.address, fragment=None),
            headers={"host": self.url.netloc.decode("ascii"), **_HEADERS},
            extensions={"sni_hostname": self.url.raw_host.decode("ascii")},
        )


class ImageFetcher:
    """Fetches bytes; what they are, others find out."""

    def __init__(
        self,
        policy: FetchPolicy,
        *,
        resolver: HostResolver | None = None,
        may_connect: Callable[[str], bool] = is_public,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._policy = policy
        self._resolver = resolver or HostResolver()
        self._may_connect = may_connect
        self._tls = tls
        self._transport: httpx.AsyncHTTPTransport | None = None  # made for the first image

    async def close(self) -> None:
        if self._transport is not None:
            await self._transport.aclose()

    async def fetch(self, url: str, max_bytes: int, tenant: str = "") -> bytes:
        """On behalf of a tenant. Raises FetchFailed."""
        if not self._policy.is_on:
            raise FetchFailed("is no data: URL, and none are fetched here")
        timeout_s = self._policy.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                return await self._fetch(url, max_bytes, tenant)
        except TimeoutError as exc:
            raise FetchFailed(f"did not give it within {timeout_s:g} s") from exc
        except httpx.TransportError as exc:
            raise FetchFailed(f"could not be fetched: {type(exc).__name__}") from exc

    async def _fetch(self, url: str, max_bytes: int, tenant: str) -> bytes:
        next_url = _parsed(url)
        for _ in range(1 + _MAX_REDIRECTS):
            target = await self._target(next_url, tenant)
            response = await self._send(target)
            try:
                if response.status_code not in _REDIRECTS:
                    return await _body(response, max_bytes)
                next_url = _joined(next_url, response.headers.get("location"))
            finally:
                await response.aclose()
        raise FetchFailed(f"leads to more than {_MAX_REDIRECTS} others")

    async def _send(self, target: _Target) -> httpx.Response:
        if self._transport is None:
            tls = self._tls
            if tls is None:
                tls = await asyncio.to_thread(_default_tls)
            self._transport = self._transport or httpx.AsyncHTTPTransport(
                # A connection is to an address, under a name: it serves one request.
                limits=httpx.Limits(max_connections=_MAX_CONNECTIONS, max_keepalive_connections=0),
                verify=tls,
                trust_env=False,
            )
        return await self._transport.handle_async_request(target.request())

    async def _target(self, url: httpx.URL, tenant: str) -> _Target:
        schemes = ("https", "http") if self._policy.allow_http else ("https",)
        if url.scheme not in schemes or not url.host:
            raise FetchFailed(f"must begin with {' or '.join(f'{each}://' for each in schemes)}")
        if url.userinfo:
            raise FetchFailed("must not hold a user or a password")
        host = url.raw_host.decode("ascii")
        self._check_domain(host)
        port = url.port or (443 if url.scheme == "https" else 80)
        try:
            addresses = await self._resolver.resolve(host, port, tenant)
        except HostNotFound as exc:
            raise FetchFailed(str(exc)) from exc
        if not addresses:
            raise FetchFailed("names a host without an address")
        if not all(map(self._may_connect, addresses)):
            raise FetchFailed("names a host with an address that is not public")
        return _Target(url, addresses[0])

    def _check_domain(self, host: str) -> None:
        domains = self._policy.allowed_domains
        name = host.rstrip(".").lower()
        if domains and not any(name == each or name.endswith(f".{each}") for each in domains):
            raise FetchFailed("names a host that is not among --allowed-media-domains")


async def _body(response: httpx.Response, max_bytes: int) -> bytes:
    if response.status_code != httpx.codes.OK:
        raise FetchFailed(f"was answered with the status {response.status_code}")
    if response.headers.get("content-encoding", "identity") != "identity":
        raise FetchFailed("was answered with a compressed body")
    data = bytearray()
    async for piece in response.aiter_raw():
        data += piece
        if len(data) > max_bytes:
            raise FetchFailed(f"holds more than {max_bytes} bytes")
    return bytes(data)


def _parsed(url: str) -> httpx.URL:
    try:
        return httpx.URL(url)
    except httpx.InvalidURL as exc:
        raise FetchFailed(f"cannot be read: {exc}") from exc


def _joined(url: httpx.URL, location: str | None) -> httpx.URL:
    if not location:
        raise FetchFailed("leads to another one, and does not say to which")
    try:
        return url.join(location)
    except httpx.InvalidURL as exc:
        raise FetchFailed("leads to another one that cannot be read") from exc


def _default_tls() -> ssl.SSLContext:
    """Reads the system's authorities: slow."""
    return ssl.create_default_context()
