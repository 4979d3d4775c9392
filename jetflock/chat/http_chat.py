"""The frontends over HTTP: asks, streams, resumes what was cut, ends what is unwanted."""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Iterator
from typing import Any, Self

import httpx

from jetflock.chat.chat_backend import ChatEvent, first_model, nothing_to_chat_with
from jetflock.running.http_service import HttpService, check_answer, lines_of, object_of
from jetflock.running.running_service import ServiceError
from shared.status.health import READY_PATH

_GRACE_S = 30  # a request runs on so long after a cut
_RETRY_FOR_S = 30.0
_RETRY_S = 0.3
_ABORT_S = 2.0


class _Away(Exception):
    """This frontend does not serve now; another one may."""


class HttpChat:
    """Any of the frontends will do: they know the same requests."""

    def __init__(self, http: HttpService) -> None:
        self._http = http

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._http.__exit__(*exc_info)

    @property
    def url(self) -> str:
        return self._http.url

    def models(self) -> list[dict[str, Any]]:
        """The models as OpenAI lists them. Raises ServiceError."""
        for _ in range(self._http.num_urls):
            try:
                response = self._http.read("GET", "/v1/models")
            except httpx.TransportError as exc:
                failure = self._http.unreachable(exc)
                self._http.turn()
                continue
            models: list[dict[str, Any]] = object_of(response)["data"]
            return models
        raise failure

    def default_model(self) -> str:
        """Raises ServiceError."""
        models = self.models()
        model = first_model(models)
        if model is None:
            raise nothing_to_chat_with(self.url, "" if models else self._why_not_ready())
        return model

    def _why_not_ready(self) -> str:
        """The service's own sentence, empty if it has none. Raises ServiceError."""
        try:
            health = self._http.read("GET", READY_PATH).json()
        except httpx.TransportError as exc:
            raise self._http.unreachable(exc) from exc
        except ValueError:
            return ""
        return " ".join(health.get("why", ()))

    def stream(self, body: dict[str, Any]) -> HttpChatStream:
        """An answer to be read. Nothing is sent before its first event is asked for."""
        return HttpChatStream(self._http, body)


class HttpChatStream:
    """The events of one answer, in order and each once, over as many connections as it takes.

    Who leaves early ends the request: iterate inside `with`.
    """

    def __init__(self, http: HttpService, body: dict[str, Any]) -> None:
        self._http = http
        self._body = body | {"stream": True, "stream_options": {"include_usage": True}}
        # The same key on every try: a request whose acceptance was not heard is not run twice.
        self._headers = {"idempotency-key": uuid.uuid4().hex, "x-resume-grace": str(_GRACE_S)}
        self._request_id = ""
        self._event_id = ""
        self._is_over = False
        self.num_resumes = 0

    def __enter__(self) -> HttpChatStream:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._request_id and not self._is_over:
            self._abort()

    def __iter__(self) -> Iterator[ChatEvent]:
        """Raises ServiceError."""
        heard_at, num_failures = time.monotonic(), 0
        while not self._is_over:
            cause: Exception = ConnectionError("the stream was cut")
            try:
                for event in self._one_connection():
                    yield event
                    heard_at = time.monotonic()
            except (httpx.TransportError, _Away) as exc:
                cause = exc
            if self._is_over:
                return
            num_failures += 1
            if self._gives_up(num_failures, heard_at):
                raise self._http.unreachable(cause) from cause
            self._http.turn()
            time.sleep(_RETRY_S)

    def _abort(self) -> None:
        """Ends it if somebody hears it: else it ends with its grace period."""
        with contextlib.suppress(httpx.HTTPError, ServiceError):
            body = {"rid": self._request_id}
            self._http.read("POST", "/abort_request", json=body, timeout=_ABORT_S)

    def _gives_up(self, num_failures: int, heard_at: float) -> bool:
        """Who was never there is not waited for."""
        if not self._request_id:
            return num_failures >= self._http.num_urls
        self.num_resumes += 1
        return time.monotonic() - heard_at > _RETRY_FOR_S

    def _one_connection(self) -> Iterator[ChatEvent]:
        response = self._open()
        try:
            if response.status_code >= 400:
                response.read()
                self._check(response)
            self._request_id = response.headers.get("x-request-id", self._request_id)
            yield from self._events(response)
        finally:
            response.close()

    def _check(self, response: httpx.Response) -> None:
        """Raises _Away for a frontend that leaves, ServiceError for all else."""
        try:
            check_answer(response)
        except ServiceError as exc:
            if self._request_id and response.status_code == httpx.codes.SERVICE_UNAVAILABLE:
                raise _Away(str(exc)) from exc
            self._is_over = True
            raise

    def _open(self) -> httpx.Response:
        if not self._request_id:
            path = "/v1/chat/completions"
            return self._http.open("POST", path, headers=self._headers, json=self._body)
        headers = {"x-resume-grace": str(_GRACE_S)}
        if self._event_id:
            headers["last-event-id"] = self._event_id
        return self._http.open("GET", f"/v1/streams/{self._request_id}", headers=headers)

    def _events(self, response: httpx.Response) -> Iterator[ChatEvent]:
        event_id = ""
        for line in lines_of(response):
            name, _, value = line.partition(": ")
            if name == "id":
                event_id = value
            elif name == "data":
                if value == "[DONE]":
                    self._is_over = True
                    return
                data = json.loads(value)
                if "error" in data:
                    self._is_over = True
                    raise ServiceError(data["error"]["message"])
                self._event_id = event_id
                yield ChatEvent(event_id, data)
