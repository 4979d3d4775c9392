"""The page at `/`: its sources joined into one document that needs nothing else."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

_FOLDER = Path(__file__).parent / "page"
_PART = re.compile(
    r'<link rel="stylesheet" href="(?P<style>[\w-]+\.css)">'
    r'|<script src="(?P<script>[\w-]+\.js)"></script>'
)


class PageDocument:
    """`page.html` with the styles and scripts that it names inside it, and the headers it needs.

    The policy lets nothing run and nothing style but these parts, by their hashes, and lets the
    page speak to its own server and `connect_origins` alone.
    """

    def __init__(self, connect_origins: Sequence[str] = (), folder: Path = _FOLDER) -> None:
        self._hashes: dict[str, list[str]] = {"script": [], "style": []}
        self.folder = folder
        html = _PART.sub(self._inlined, (folder / "page.html").read_text("utf-8"))
        self.body = html.encode()
        self._compressed = gzip.compress(self.body, mtime=0)
        self._etag = hashlib.sha256(self.body).hexdigest()[:24]
        self._headers = {
            "content-type": "text/html; charset=utf-8",
            "cache-control": "no-cache",
            "content-security-policy": self._policy(connect_origins),
            "vary": "Accept-Encoding",
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
        }

    def response(self, request: Request) -> Response:
        """The document, or that the client's copy is still right."""
        takes_gzip = "gzip" in request.headers.get("accept-encoding", "")
        etag = f'"{self._etag}{"-gzip" if takes_gzip else ""}"'
        headers = {**self._headers, "etag": etag}
        if etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if takes_gzip:
            return Response(self._compressed, headers={**headers, "content-encoding": "gzip"})
        return Response(self.body, headers=headers)

    def _inlined(self, match: re.Match[str]) -> str:
        kind = "style" if match["style"] else "script"
        text = (self.folder / match[kind]).read_text("utf-8")
        assert f"</{kind}" not in text, f"{match[kind]} would end its own element"
        assert "<!--" not in text, f"{match[kind]} would begin a comment"
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        self._hashes[kind].append(f"'sha256-{digest}'")
        return f"<{kind}>{text}</{kind}>"

    def _policy(self, connect_origins: Sequence[str]) -> str:
        directives = {
            "default-src": ["'none'"],
            "script-src": self._hashes["script"],
            "style-src": self._hashes["style"],
            "img-src": ["data:"],
            "connect-src": ["'self'", *connect_origins],
            "base-uri": ["'none'"],
            "form-action": ["'none'"],
            "frame-ancestors": ["'none'"],
            "require-trusted-types-for": ["'script'"],  # no text ever becomes HTML or a program
        }
        return "; ".join(f"{name} {' '.join(values)}" for name, values in directives.items())
