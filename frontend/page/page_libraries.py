"""The libraries of others that the page loads when it needs them: files, licences and hashes."""

from __future__ import annotations

import base64
import gzip
from functools import cache
from pathlib import Path
from types import MappingProxyType

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from shared.errors import NotFound

FOLDER = Path(__file__).parent / "vendor"
ROUTE = "/page/{name}"
_FOR_EVER = "public, max-age=31536000, immutable"  # its address has its hash
_TYPES = MappingProxyType(
    {
        ".js": "text/javascript; charset=utf-8",
        ".css": "text/css; charset=utf-8",
        ".woff2": "font/woff2",
        ".LICENSE": "text/plain; charset=utf-8",
    }
)
_COMPRESSED = (".woff2",)  # already


class LibraryFile(msgspec.Struct, frozen=True):
    """One file of a library."""

    name: str  # here
    source: str  # its path in the package
    sha256: str  # in hexadecimal digits


class Library(msgspec.Struct, frozen=True):
    """A package of npm, and what we have of it."""

    package: str
    version: str
    licence: str
    files: list[LibraryFile]


class Manifest(msgspec.Struct, frozen=True):
    """All that others have written in the page."""

    libraries: list[Library]


def read_manifest() -> Manifest:
    """The manifest as it lies beside the files."""
    return msgspec.json.decode((FOLDER / "manifest.json").read_bytes(), type=Manifest)


class PageLibraries:
    """The files of the manifest, each under an address that changes with its bytes."""

    def __init__(self) -> None:
        files = [file for library in read_manifest().libraries for file in library.files]
        self.files = {file.name: file for file in files}

    def response(self, request: Request) -> Response:
        """The file that the path names. Raises NotFound."""
        name = request.path_params["name"]
        if name not in self.files:
            raise NotFound(f"The page has no file {name[:100]!r}.")
        suffix = Path(name).suffix
        headers = {
            "content-type": _TYPES[suffix],
            "cache-control": _FOR_EVER,
            "vary": "Accept-Encoding",
            "x-content-type-options": "nosniff",
        }
        takes_gzip = "gzip" in request.headers.get("accept-encoding", "")
        if takes_gzip and suffix not in _COMPRESSED:
            headers["content-encoding"] = "gzip"
            return Response(_compressed(name), headers=headers)
        return Response(_content(name), headers=headers)

    def address(self, name: str) -> str:
        """Below the page's own."""
        return f"{ROUTE.format(name=name)[1:]}?v={self.files[name].sha256[:16]}"

    def integrity(self, name: str) -> str:
        """Its hash, as browsers and policies write it."""
        digest = bytes.fromhex(self.files[name].sha256)
        return f"sha256-{base64.b64encode(digest).decode()}"


@cache
def _content(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


@cache
def _compressed(name: str) -> bytes:
    return gzip.compress(_content(name), mtime=0)
