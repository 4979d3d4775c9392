"""The page at `/`: its sources joined into one document, which loads libraries by need."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from frontend.page.page_libraries import FOLDER as _LIBRARIES_FOLDER
from frontend.page.page_libraries import PageLibraries

_FOLDER = Path(__file__).parent
_STYLES = re.compile(r'(?:<link rel="stylesheet" href="[\w-]+\.css">\s*)+')
_SCRIPTS = re.compile(r'(?:<script src="[\w-]+\.js"></script>\s*)+')
# Comments and margins: a quarter of the sources, and nothing to the browser.
_COMMENT = re.compile(r"^\s*(?://[^\n]*|/\*.*?\*/[ \t]*)\n", re.MULTILINE | re.DOTALL)
_REMARK = re.compile(r"""(?<=[;{}(,]) // [^\n'"`]*$|(?<=;) /\* [^*]* \*/$""", re.MULTILINE)
_MARGIN = re.compile(r"^\s+", re.MULTILINE)
_CSS_SPACE = re.compile(r"\s*([{};,>])\s*|(?<=[\w-])(:) (?=\S)")
_NAME = re.compile(r'"([\w-]+\.(?:js|css))"')
# Its style stands in the document, since a policy names no hashes of styles that lie elsewhere.
# Without its fonts: they lie below the page's address, which only the page knows (formula.js).
_FORMULA_STYLE = "katex.min.css"
_FONT_RULE = re.compile(r"@font-face\{[^}]*\}")


class PageDocument:
    """`page.html` with the styles and scripts that it names inside it, and the headers it needs.

    The policy lets nothing run and nothing style but these parts and the libraries, by their
    hashes, and lets the page speak to its own server and `connect_origins` alone.
    """

    def __init__(self, connect_origins: Sequence[str] = ()) -> None:
        self.folder = _FOLDER
        self.libraries = PageLibraries()
        self._connect_origins = connect_origins

    @property
    def body(self) -> bytes:
        return self._joined.body

    @cached_property
    def _joined(self) -> _JoinedPage:
        """Made when somebody asks: most frontends show no page, and start without it."""
        return _joined_page(self.folder)

    @cached_property
    def _headers(self) -> dict[str, str]:
        joined, libraries = self._joined, self.libraries
        hashes = [
            joined.script_hash,
            *(f"'{libraries.integrity(name)}'" for name in _scripts(libraries)),
        ]
        return {
            "content-type": "text/html; charset=utf-8",
            "cache-control": "no-cache",
            "content-security-policy": _policy(hashes, joined.style_hash, self._connect_origins),
            "vary": "Accept-Encoding",
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
        }

    def response(self, request: Request) -> Response:
        """The document, or that the client's copy is still right."""
        takes_gzip = "gzip" in request.headers.get("accept-encoding", "")
        etag = f'"{self._joined.etag}{"-gzip" if takes_gzip else ""}"'
        headers = {**self._headers, "etag": etag}
        if etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if takes_gzip:
            headers["content-encoding"] = "gzip"
            return Response(self._joined.compressed, headers=headers)
        return Response(self.body, headers=headers)


@dataclass(frozen=True, slots=True)
class _JoinedPage:
    """The document, and the hashes of its parts as a policy writes them."""

    body: bytes
    compressed: bytes
    etag: str
    style_hash: str
    script_hash: str


@cache  # a process may hold many frontends, as tests do; the page is the same for all of them
def _joined_page(folder: Path) -> _JoinedPage:
    html = (folder / "page.html").read_text("utf-8")
    libraries = PageLibraries()
    formulas = (_LIBRARIES_FOLDER / _FORMULA_STYLE).read_text("utf-8")
    html, style_hash = _with_inlined(folder, html, "style", _STYLES, _FONT_RULE.sub("", formulas))
    html, script_hash = _with_inlined(folder, html, "script", _SCRIPTS, _library_table(libraries))
    body = html.encode()
    etag = hashlib.sha256(body).hexdigest()[:24]
    return _JoinedPage(body, gzip.compress(body, mtime=0), etag, style_hash, script_hash)


def _scripts(libraries: PageLibraries) -> list[str]:
    return [name for name in libraries.files if name.endswith(".js")]


def _library_table(libraries: PageLibraries) -> str:
    """What the page's script knows of the libraries before it has loaded any."""
    scripts = {
        name: {"address": libraries.address(name), "integrity": libraries.integrity(name)}
        for name in _scripts(libraries)
    }
    fonts = {name: libraries.address(name) for name in libraries.files if name.endswith(".woff2")}
    return (
        "'use strict';\n"
        f"const LIBRARY_SCRIPTS = {json.dumps(scripts)};\n"
        f"const FORMULA_FONTS = {json.dumps(fonts)};\n"
    )


def _with_inlined(
    folder: Path, html: str, kind: str, names: re.Pattern[str], before: str
) -> tuple[str, str]:
    """The parts that stand side by side become one element; returns its hash with it."""
    found = names.search(html)
    assert found is not None, f"page.html names no {kind}"
    text = before + "".join(_bare(folder / name) for name in _NAME.findall(found[0]))
    assert f"</{kind}" not in text, f"a {kind} would end its own element"
    assert "<!--" not in text, f"a {kind} would begin a comment"
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    html = f"{html[: found.start()]}<{kind}>{text}</{kind}>\n{html[found.end() :]}"
    return html, f"'sha256-{digest}'"


def _bare(path: Path) -> str:
    text = _MARGIN.sub("", _REMARK.sub("", _COMMENT.sub("", path.read_text("utf-8"))))
    return _CSS_SPACE.sub(r"\1\2", text) if path.suffix == ".css" else text


def _policy(script_hashes: Sequence[str], style_hash: str, connect_origins: Sequence[str]) -> str:
    directives = {
        "default-src": ["'none'"],
        "script-src": [*script_hashes],
        "style-src": [style_hash],
        "img-src": ["data:"],
        "font-src": ["'self'"],
        "connect-src": ["'self'", *connect_origins],
        "base-uri": ["'none'"],
        "form-action": ["'none'"],
        "frame-ancestors": ["'none'"],
        "require-trusted-types-for": ["'script'"],  # no text ever becomes HTML or a program
        "trusted-types": ["jetflock-libraries"],  # which knows their addresses and no others
    }
    return "; ".join(f"{name} {' '.join(values)}" for name, values in directives.items())
