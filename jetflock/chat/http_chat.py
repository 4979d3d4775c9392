"""The frontends over HTTP: asks, streams, resumes what was cut, ends what is unwanted."""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import httpx

from jetflock.chat.chat_backend import ChatEvent, ChatFailed, first_model

_CONNECT_S = 5.0
_SILENCE_S = 60.0  # frontends send a comment every 15 s
_GRACE_S = 30  # a request runs on so long after a cut
_RETRY_FOR_S = 30.0
_RETRY_S = 0.3


class _Away(Exception):
    """This frontend does not serve now; another one may."""


class HttpChat:
    """Any of the frontends will do: they know the same requests."""

    def __init__(self, urls: Sequence[str], api_key: str | None) -> None:
        self._urls = list(urls)  # the one in use comes first
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        timeout = httpx.Timeout(_SILENCE_S, connect=_CONNECT_S)
        self._client = httpx.Client(headers=headers, timeout=timeout)

    def __enter__(self) -> HttpChat:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._client.close()

    @property
    def url(self) -> str:
        return self._urls[0]

    def models(self) -> list[dict[str, Any]]:
        """As OpenAI lists them. Raises ChatFailed."""
        for _ in self._urls:
            try:
                response = self._client.get(f"{self.url}/v1/models")
            except httpx.TransportError as exc:
                failure = self._unreachable(exc)
                self._turn()
                continue
            except httpx.InvalidURL as exc:
                raise ChatFailed(f"{self.url!r} is no URL: {exc}; check --url") from exc
            check_response(response)
            models: list[dict[str, Any]] = response.json()["data"]
            return models
        raise failure

    def default_model(self) -> str:
        """Raises ChatFailed."""
        return first_model(self.models(), self.url)

    def stream(self, body: dict[str, Any]) -> HttpChatStream:
        """An answer to be read. Nothing is sent before its first event is asked for."""
        return HttpChatStream(self, body)

    def open(
        self, method: str, path: str, headers: dict[str, str], body: object = None
    ) -> httpx.Response:
        """Its head has been read, its body has not. Raises httpx.TransportError."""
        request = self._client.build_request(
            method, self.url + path, headers=headers, json=body if body is not None else None
        )
        return self._client.send(request, stream=True)

    def abort(self, request_id: str) -> None:
        """As far as somebody hears it: else it ends with its grace period."""
        with contextlib.suppress(httpx.HTTPError):
            self._client.post(f"{self.url}/abort_request", json={"rid": request_id}, timeout=2.0)

    @property
    def num_urls(self) -> int:
        return len(self._urls)

    def next_after(self, cause: Exception, *, is_last: bool) -> None:
        """After a cut, another frontend, or the only one again. Raises ChatFailed at the last."""
        if is_last:
            raise self._unreachable(cause) from cause
        self._turn()
        time.sleep(_RETRY_S)

    def _turn(self) -> None:
        self._urls.append(self._urls.pop(0))

    def _unreachable(self, exc: Exception) -> ChatFailed:
        return ChatFailed(
            f"no answer from {self.url} ({exc or type(exc).__name__}); is it running "
            "(jetflock serve)? Name another by --url"
        )


class HttpChatStream:
    """The events of one answer, in order and each once, over as many connections as it takes.

    Who leaves early ends the request: iterate inside `with`.
    """

    def __init__(self, service: HttpChat, body: dict[str, Any]) -> None:
        self._service = service
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
            self._service.abort(self._request_id)

    def __iter__(self) -> Iterator[ChatEvent]:
        """Raises ChatFailed."""
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
            self._service.next_after(cause, is_last=self._gives_up(num_failures, heard_at))

    def _gives_up(self, num_failures: int, heard_at: float) -> bool:
        """Who was never there is not waited for."""
        if not self._request_id:
            return num_failures >= self._service.num_urls
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
        """Raises _Away for a frontend that leaves, ChatFailed for all else."""
        try:
            check_response(response)
        except ChatFailed as exc:
            if self._request_id and response.status_code == httpx.codes.SERVICE_UNAVAILABLE:
                raise _Away(str(exc)) from exc
            self._is_over = True
            raise

    def _open(self) -> httpx.Response:
        if not self._request_id:
            path = "/v1/chat/completions"
            return self._service.open("POST", path, self._headers, self._body)
        headers = {"x-resume-grace": str(_GRACE_S)}
        if self._event_id:
            headers["last-event-id"] = self._event_id
        return self._service.open("GET", f"/v1/streams/{self._request_id}", headers)

    def _events(self, response: httpx.Response) -> Iterator[ChatEvent]:
        event_id = ""
        for line in _lines(response):
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
                    raise ChatFailed(data["error"]["message"])
                self._event_id = event_id
                yield ChatEvent(event_id, data)


def _lines(response: httpx.Response) -> Iterator[str]:
    """httpx's own `iter_lines` also breaks lines at characters that JSON may hold as they are."""
    rest = b""
    for data in response.iter_bytes():
        *lines, rest = (rest + data).split(b"\n")
        yield from (line.decode() for line in lines)


def check_response(response: httpx.Response) -> None:
    """Raises ChatFailed with the service's own words."""
    if response.status_code < 400:
        return
    try:
        message = str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = f"{response.request.url} answers with status {response.status_code}"
    if response.status_code == httpx.codes.UNAUTHORIZED:
        message += " Give --api-key or --api-key-file."
    if wait := response.headers.get("retry-after"):
        message += f" Try again in {wait} s."
    raise ChatFailed(message)
