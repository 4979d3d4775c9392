"""Origins of web pages and servers, as browsers write and compare them."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from shared.errors import ConfigError

_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"[A-Za-z0-9.:_-]+")


def origin_of(url: str, flag: str) -> str:
    """`https://host`, or `http://host:port`. Raises ConfigError, which names the flag."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        parts, host, port = urlsplit(""), "", None
    if parts.scheme not in _PORTS or not _HOST.fullmatch(host) or "@" in parts.netloc:
        raise ConfigError(
            f"{flag} {url!r} is no address of a server; write it as the browser does, "
            "for example http://127.0.0.1:8000"
        )
    shown_host = f"[{host}]" if ":" in host else host
    shown_port = "" if port is None or port == _PORTS[parts.scheme] else f":{port}"
    return f"{parts.scheme}://{shown_host}{shown_port}"


def checked_origin(text: str, flag: str) -> str:
    """The same of what is nothing but an origin. Raises ConfigError."""
    origin, parts = origin_of(text, flag), urlsplit(text)
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise ConfigError(f"{flag} {text!r} has more than scheme, host and port; leave that out")
    return origin
