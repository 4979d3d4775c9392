"""Keeps pages of other sites from a server that asks for no key.

A browser sends what a page tells it to, from within the network of whoever reads the page. No page
can lie in `Host`, `Origin` and `Sec-Fetch-Site`, and programs send none of the last two.
"""

from __future__ import annotations

from starlette.types import Scope

from frontend.http.http_request import headers_of
from shared.errors import Forbidden, RequestError, UnsupportedContentType
from shared.status.http_host import HostRule

_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_OWN_SITES = ("same-origin", "none")  # none: the user typed it
# Of the requests that a page may send to any site without asking it first.
_FORM_TYPES = ("text/plain", "application/x-www-form-urlencoded")


class BrowserGuard:
    """Decides by the names that the server goes by, and the origins of pages that may call it."""

    def __init__(self, hosts: HostRule, origins: tuple[str, ...] = ()) -> None:
        self._hosts = hosts
        self._origins = frozenset(origins)

    def refusal(self, scope: Scope) -> RequestError | None:
        """None for what may pass."""
        headers, method = headers_of(scope), scope["method"]
        host = headers.get("host", "")
        if not self._hosts.allows(host):
            return Forbidden(
                f"This server is not known as {host[:100]!r}; --allowed-hosts names it.",
                param="Host",
                code="foreign_host",
            )
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin is None and site is None:
            return None
        if not self._is_own(origin, site, host, method):
            return Forbidden(
                f"The page of {(origin or site or '')[:100]!r} may not call this server; "
                "--cors-origins names those that may.",
                param="Origin",
                code="foreign_origin",
            )
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if method not in _SAFE_METHODS and kind in _FORM_TYPES:
            return UnsupportedContentType(
                f"header content-type is {kind!r}, a page must send application/json",
                param="content-type",
            )
        return None

    def _is_own(self, origin: str | None, site: str | None, host: str, method: str) -> bool:
        if site in _OWN_SITES or {origin, "*"} & self._origins:
            return True
        if origin is None:
            return method in _SAFE_METHODS
        return origin.partition("://")[2].lower() == host.lower()
