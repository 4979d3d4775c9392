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
_STYLES = re.compile(r'(?:<link rel="stylesheet" href="[\w-]+\.css">\s*)+')
_SCRIPTS = re.compile(r'(?:<script src="[\w-]+\.js"></script>\s*)+')
# Comments and margins: a quarter of the sources, and nothing to the browser.
_COMMENT = re.compile(r"^\s*(?://[^\n]*|/\*.*?\*/[ \t]*)\n", re.MULTILINE | re.DOTALL)
_REMARK = re.compile(r"""(?<=[;{}(,]) // [^\n'"`]*$|(?<=;) /\* [^*]* \*/$""", re.MULTILINE)
_MARGIN = re.compile(r"^\s+", re.MULTILINE)
_CSS_SPACE = re.compile(r"\s*([{};,>])\s*|(?<=[\w-])(:) (?=\S)")
_NAME = re.compile(r'"([\w-]+\.(?:js|css))"')


class PageDocument:
    """`page.html` with the styles and scripts that it names inside it, and the headers it needs.

    The policy lets nothing run and nothing style but these parts, by their hashes, and lets the
    page speak to its own server and `connect_origins` alone.
    """

    def __init__(self, connect_origins: Sequence[str] = (), folder: Path = _FOLDER) -> None:
        self.folder = folder
        html = (folder / "page.html").read_text("utf-8")
        html, style_hash = self._with_inlined(html, "style", _STYLES)
        html, script_hash = self._with_inlined(html, "script", _SCRIPTS)
        self.body = html.encode()
        self._compressed = gzip.compress(self.body, mtime=0)
        self._etag = hashlib.sha256(self.body).hexdigest()[:24]
        self._headers = {
            "content-type": "text/html; charset=utf-8",
            "cache-control": "no-cache",
            "content-security-policy": _policy(script_hash, style_hash, connect_origins),
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

    def _with_inlined(self, html: str, kind: str, names: re.Pattern[str]) -> tuple[str, str]:
        """The parts that stand side by side become one element; returns its hash with it."""
        found = names.search(html)
        assert found is not None, f"page.html names no {kind}"
        paths = [self.folder / name for name in _NAME.findall(found[0])]
        text = "".join(_bare(path) for path in paths)
        assert f"</{kind}" not in text, f"a {kind} would end its own element"
        assert "<!--" not in text, f"a {kind} would begin a comment"
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        html = f"{html[: found.start()]}<{kind}>{text}</{kind}>\n{html[found.end() :]}"
        return html, f"'sha256-{digest}'"


def _bare(path: Path) -> str:
    text = _MARGIN.sub("", _REMARK.sub("", _COMMENT.sub("", path.read_text("utf-8"))))
    return _CSS_SPACE.sub(r"\1\2", text) if path.suffix == ".css" else text


def _policy(script_hash: str, style_hash: str, connect_origins: Sequence[str]) -> str:
    directives = {
        "default-src": ["'none'"],
        "script-src": [script_hash],
        "style-src": [style_hash],
        "img-src": ["data:"],
        "connect-src": ["'self'", *connect_origins],
        "base-uri": ["'none'"],
        "form-action": ["'none'"],
        "frame-ancestors": ["'none'"],
        "require-trusted-types-for": ["'script'"],  # no text ever becomes HTML or a program
    }
    return "; ".join(f"{name} {' '.join(values)}" for name, values in directives.items())
