"""The commands' HTTP client: what it asks, and what it makes of refusals and silence."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from deploy.local.http_probe import answers_ok
from jetflock.running.http_service import HttpService
from jetflock.running.running_service import ServiceError
from tests.nats_server import free_port


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        refusal = {"error": {"message": "The queue is full."}}
        status, body = {
            "/ok": (200, json.dumps({"key": self.headers.get("authorization")})),
            "/full": (429, json.dumps(refusal)),
            "/keys": (401, json.dumps({"error": {"message": "No such key."}})),
            "/broken": (502, "<html>bad gateway"),
        }.get(self.path, (200, "hello"))
        self.send_response(status)
        if status == 429:
            self.send_header("retry-after", "7")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *args: object) -> None: ...


@contextmanager
def served() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def test_a_refusal_is_told_in_the_services_own_words() -> None:
    with served() as port, HttpService([f"http://127.0.0.1:{port}"], "secret") as service:
        assert service.ask("GET", "/ok") == {"key": "Bearer secret"}
        for path, words in (
            ("/full", "The queue is full. Try again in 7 s."),
            ("/keys", "No such key. Give --api-key or --api-key-file."),
            ("/broken", f"{service.url}/broken answers with status 502"),
            ("/hello", f"{service.url}/hello is no jetflock: 'hello'"),
        ):
            with pytest.raises(ServiceError) as caught:
                service.ask("GET", path)
            assert str(caught.value) == words


def test_who_does_not_answer_is_named_and_the_next_one_may_be_asked() -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    with served() as port:
        urls = [nobody, f"http://127.0.0.1:{port}"]
        with HttpService(urls, None) as service:
            with pytest.raises(ServiceError, match=f"no answer from {nobody} .*--url") as caught:
                service.ask("GET", "/ok")
            assert caught.value.exit_status == 1
            service.turn()
            assert service.ask("GET", "/ok") == {"key": None}
    with (
        HttpService(["http://127.0.0.1:none"], None) as service,
        pytest.raises(ServiceError, match="URL"),
    ):
        service.ask("GET", "/ok")


async def test_a_server_is_ready_when_it_says_200(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    with served() as port:
        assert await answers_ok("127.0.0.1", port, "/ok")
        assert not await answers_ok("127.0.0.1", port, "/full")
    assert not await answers_ok("127.0.0.1", free_port(), "/ok")
