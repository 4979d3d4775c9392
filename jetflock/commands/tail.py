"""`jetflock tail ID`: the text of a request as it comes, beside whoever reads it."""

# No `from __future__ import annotations` here: cyclopts reads the types of the fields.

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import httpx
from cyclopts import Parameter

from jetflock.running.http_service import HttpService, check_answer, lines_of
from jetflock.running.running_service import ServiceError, chosen_key, frontend_urls
from shared.cli.program import Program
from shared.config import FLAT
from shared.errors import ConfigError

_NAME = "jetflock tail"
_SUMMARY = """\
Print the text of request ID from its beginning on, and what comes, until it ends.

ID is the `x-request-id` of its answer. To look on changes nothing: the request ends with its \
own client, or goes on. A stream that is cut goes on at the next frontend."""

_RETRY_FOR_S = 30.0
_RETRY_S = 0.3


@dataclass(frozen=True, kw_only=True)
class TailConfig:
    """Flags of `jetflock tail`."""

    url: str = ""
    """Of a frontend, or of several, comma separated; by default that of the jetflock serve that
    runs here, else http://127.0.0.1:8000."""
    api_key: str | None = None
    """Key to send: that of the request."""
    api_key_file: Path | None = None
    """File that holds the key."""
    choice: int = 0
    """Which of n choices."""
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False
    """Print the events as they come, one JSON object a line, of all choices."""

    def service(self) -> HttpService:
        """Raises ConfigError."""
        key = chosen_key(self.api_key, self.api_key_file)
        return HttpService(frontend_urls(self.url), key)


class Watching:
    """The events of one request, over as many connections as it takes."""

    def __init__(self, http: HttpService, request_id: str) -> None:
        self._http = http
        self._request_id = request_id
        self._event_id = ""
        self._is_over = False
        self.starts_anew = True  # the next event is the first of all

    def __iter__(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each with its id; "" where they have none. Raises ServiceError."""
        heard_at = time.monotonic()
        while not self._is_over:
            cause: Exception = ConnectionError("the stream was cut")
            self.starts_anew = not self._event_id
            try:
                for event in self._one_connection():
                    yield event
                    heard_at, self.starts_anew = time.monotonic(), False
            except httpx.TransportError as exc:
                cause = exc
            if self._is_over:
                return
            if time.monotonic() - heard_at > _RETRY_FOR_S:
                raise self._http.unreachable(cause) from cause
            self._http.turn()
            time.sleep(_RETRY_S)

    def _one_connection(self) -> Iterator[tuple[str, dict[str, Any]]]:
        headers = {"last-event-id": self._event_id} if self._event_id else {}
        path = f"/v1/streams/{quote(self._request_id, safe='')}?watch=true"
        response = self._http.open("GET", path, headers=headers)
        try:
            if response.is_error:
                response.read()
                if response.status_code != httpx.codes.SERVICE_UNAVAILABLE or not self._event_id:
                    check_answer(response)
                return
            yield from self._events(response)
        finally:
            response.close()

    def _events(self, response: httpx.Response) -> Iterator[tuple[str, dict[str, Any]]]:
        is_json = "ndjson" in response.headers["content-type"]
        event_id = ""
        for line in lines_of(response):
            name, _, value = ("data", "", line.strip()) if is_json else line.partition(": ")
            if name == "id":
                event_id = value
            elif name == "data" and value == "[DONE]":
                self._is_over = True
            elif name == "data" and value:
                data = json.loads(value)
                self._is_over |= "error" in data or _is_last(data)
                if isinstance(data.get("error"), dict):
                    raise ServiceError(data["error"]["message"])
                yield event_id, data
                self._event_id = event_id


def _is_last(event: dict[str, Any]) -> bool:
    """Whether this ends a stream of an API that marks its end."""
    kind = event.get("type", "")
    ends = ("message_stop", "response.completed", "response.incomplete", "response.failed")
    return kind in ends or event.get("done") is True or event.get("stop") is True


def new_text(event_id: str, event: dict[str, Any], choice: int, num_shown: int) -> str:
    """What an event adds to a choice of which so many code points are shown; any of our APIs."""
    for each in event.get("choices") or ():
        if each["index"] == choice:
            delta = each.get("delta", {})
            thought = delta.get("reasoning_content") or ""
            return str(each.get("text") or thought + (delta.get("content") or ""))
    if "meta_info" in event and event.get("index", 0) == choice:
        # Events of /generate carry what is new, or all so far: their id says how long that is.
        marks = event_id.partition(".")[2].split("_")
        text_len = int(marks[choice].split(".")[1])
        return str(event["text"])[-(text_len - num_shown) :] if text_len > num_shown else ""
    delta = event.get("delta")
    if isinstance(delta, dict):  # Anthropic's
        return str(delta.get("text") or delta.get("thinking") or "")
    if isinstance(delta, str) and str(event.get("type", "")).endswith("text.delta"):
        return delta  # of a response
    message = event.get("message")
    told = message.get("content") if isinstance(message, dict) else None
    return str(told or event.get("response") or event.get("content") or "")


def main(request_id: str, /, *, config: Annotated[TailConfig, FLAT] = TailConfig()) -> None:
    """Print it."""
    if config.choice < 0:
        raise ConfigError(f"choice is {config.choice}, must not be below 0")
    with config.service() as http:
        try:
            _print(Watching(http, request_id), config)
        except BrokenPipeError:
            sys.stderr.close()


def _print(watching: Watching, config: TailConfig) -> None:
    num_shown = num_received = 0  # code points on the screen, and of this connection
    for event_id, event in watching:
        if config.as_json:
            sys.stdout.write(json.dumps(event, ensure_ascii=False) + "\n")
            sys.stdout.flush()
            continue
        if watching.starts_anew:
            num_received = 0
        text = new_text(event_id, event, config.choice, num_received)
        new = text[max(0, num_shown - num_received) :]
        num_received += len(text)
        num_shown = max(num_shown, num_received)
        sys.stdout.write(new)
        sys.stdout.flush()
    if not config.as_json:
        sys.stdout.write("\n")


PROGRAM = Program(name=_NAME, summary=_SUMMARY, main=main, takes_file=False)

if __name__ == "__main__":
    PROGRAM.run()
