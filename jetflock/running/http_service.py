"""The HTTP client of the commands: whom they ask, with which key, and what a refusal says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self

import httpx

from jetflock.running.running_service import ServiceError

_CONNECT_S = 5.0
_SILENCE_S = 60.0  # frontends send a comment every 15 s


class HttpService:
    """Any of the frontends will do, since they know the same requests: the first is in use."""

    def __init__(self, urls: Sequence[str], api_key: str | None) -> None:
        self._urls = list(urls)  # the one in use comes first
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        timeout = httpx.Timeout(_SILENCE_S, connect=_CONNECT_S)
        self._client = httpx.Client(headers=headers, timeout=timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._client.close()

    @property
    def url(self) -> str:
        return self._urls[0]

    @property
    def num_urls(self) -> int:
        return len(self._urls)

    def turn(self) -> None:
        """Go on with the next frontend, or with the only one again."""
        self._urls.append(self._urls.pop(0))

    def open(self, method: str, path: str, **content: Any) -> httpx.Response:
        """The answer, of which only the head has been read. `content` is httpx's.

        Raises httpx.TransportError, or ServiceError where the URL is none.
        """
        try:
            request = self._client.build_request(method, self.url + path, **content)
            return self._client.send(request, stream=True)
        except httpx.InvalidURL as exc:
            raise ServiceError(f"{self.url!r} is no URL: {exc}; check --url") from exc

    def read(self, method: str, path: str, **content: Any) -> httpx.Response:
        """The whole answer. Raises as `open` does."""
        response = self.open(method, path, **content)
        try:
            response.read()
        finally:
            response.close()
        return response

    def ask(self, method: str, path: str, **content: Any) -> dict[str, Any]:
        """The object of an answer. Raises ServiceError, also when nobody answers."""
        try:
            return object_of(self.read(method, path, **content))
        except httpx.TransportError as exc:
            raise self.unreachable(exc) from exc

    def unreachable(self, exc: Exception) -> ServiceError:
        """What to raise when nobody answers."""
        return ServiceError(
            f"no answer from {self.url} ({exc or type(exc).__name__}); is it running "
            "(jetflock serve)? Name another by --url"
        )


def check_answer(response: httpx.Response) -> None:
    """Raises ServiceError with the service's own words. The answer has been read."""
    if not response.is_error:
        return
    try:
        message = str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = f"{response.request.url} answers with status {response.status_code}"
    if response.status_code == httpx.codes.UNAUTHORIZED:
        message += " Give --api-key or --api-key-file."
    if wait := response.headers.get("retry-after"):
        message += f" Try again in {wait} s."
    raise ServiceError(message)


def lines_of(response: httpx.Response) -> Iterator[str]:
    """httpx's own `iter_lines` also breaks lines at characters that JSON may hold as they are."""
    rest = b""
    for data in response.iter_bytes():
        *lines, rest = (rest + data).split(b"\n")
        yield from (line.decode() for line in lines)


def object_of(response: httpx.Response) -> dict[str, Any]:
    """The JSON object of an answer that has been read. Raises ServiceError."""
    check_answer(response)
    try:
        return dict(response.json())
    except (ValueError, TypeError) as exc:
        told = response.text[:80]
        raise ServiceError(f"{response.request.url} is no jetflock: {told!r}") from exc
