"""A Hugging Face hub with the repositories that a test puts there, for the hub's own client."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_INFO = re.compile(r"/api/models/([^/]+/[^/]+)/revision/")
_TREE = re.compile(r"/api/models/([^/]+/[^/]+)/tree/")
_FILE = re.compile(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)")


@contextlib.contextmanager
def local_hub(folders: Mapping[str, Path]) -> Iterator[tuple[str, list[str]]]:
    """Its URL, and the files that were fetched from it so far."""
    fetched: list[str] = []

    class Hub(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def log_request(self, *_: object) -> None:
            pass

        def _answer(self, *, with_body: bool) -> None:
            path = self.path.partition("?")[0]
            if (info := _INFO.match(path)) and info[1] in folders:
                body = json.dumps({"_id": "1", "id": info[1], "sha": COMMIT}).encode()
                etag = ""
            elif (tree := _TREE.match(path)) and tree[1] in folders:
                files = sorted(folders[tree[1]].iterdir())
                told = [
                    {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": "0"}
                    for file in files
                ]
                body, etag = json.dumps(told).encode(), ""
            elif (wanted := _FILE.match(path)) and wanted[1] in folders:
                body = (folders[wanted[1]] / wanted[2]).read_bytes()
                etag = hashlib.sha256(body).hexdigest()
                if with_body:
                    fetched.append(wanted[2])
            else:
                self.send_response(404)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{etag}"')
            self.end_headers()
            if with_body:
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", fetched
    finally:
        server.shutdown()
        server.server_close()
