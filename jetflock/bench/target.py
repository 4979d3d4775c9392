"""Where the load goes: address, TLS, and what every request carries."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from shared.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Target:
    """A server that speaks OpenAI's API over HTTP/1.1."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    base_path: str  # before "/v1"
    headers: Mapping[str, str]

    @classmethod
    def from_url(
        cls,
        url: str,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        verify: bool = True,
    ) -> Target:
        """`url` with "/v1" at its end or without. Raises ConfigError."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = 0
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
            raise ConfigError(f"url is {url!r}, must be like http://127.0.0.1:8000")
        tls = _tls(verify=verify) if parts.scheme == "https" else None
        sent = {"Host": parts.netloc.rpartition("@")[2], "Content-Type": "application/json"}
        if api_key:
            sent["Authorization"] = f"Bearer {api_key}"
        return cls(
            host=parts.hostname,
            port=port or (80 if tls is None else 443),
            tls=tls,
            base_path=parts.path.rstrip("/").removesuffix("/v1"),
            headers=sent | dict(headers or {}),
        )

    def request(self, method: str, path: str, content: bytes = b"") -> bytes:
        """A whole request, ready to be sent."""
        lines = [f"{method} {self.base_path}{path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        lines += [f"Content-Length: {len(content)}", "", ""]
        return "\r\n".join(lines).encode("latin-1") + content


def _tls(*, verify: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
