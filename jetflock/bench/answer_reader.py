"""Reads one answer as it arrives: a stream of events, or one JSON object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from jetflock.bench.request_record import RequestRecord

_MAX_BODY_BYTES = 1 << 26  # of an answer that is no stream
_MAX_MESSAGE_LEN = 200


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None

    @property
    def brings_something(self) -> bool:
        if self.delta is None:
            return bool(self.text)
        delta = self.delta
        return bool(delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls)


class _CachedTokens(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _CachedTokens | None = None


class Chunk(msgspec.Struct):
    """The fields of a chunk, or of a whole answer, that are looked at."""

    choices: list[_Choice] = []  # msgspec copies it
    usage: _Usage | None = None
    error: Any = None


class AnswerReader:
    """Fills in the record of one attempt. Bytes may be cut anywhere."""

    def __init__(self, record: RequestRecord, decoder: msgspec.json.Decoder[Chunk]) -> None:
        self._record = record
        self._decoder = decoder
        self._rest = b""  # an unfinished line
        self._is_stream = False
        self._is_finished = False  # a choice told why it ended, or [DONE] came
        self.retry_after_s: float | None = None

    def head(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        """Names are in lower case."""
        self._record.status = status
        kind = headers.get(b"content-type", b"")
        self._is_stream = status == 200 and kind.startswith(b"text/event-stream")
        self.retry_after_s = _seconds(headers.get(b"retry-after"))

    def feed(self, data: bytes, now: float) -> None:
        """A piece of the body."""
        if not self._is_stream:
            if len(self._rest) + len(data) <= _MAX_BODY_BYTES:
                self._rest += data
            return
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), now)

    def end(self, now: float) -> None:
        """The answer is whole, as far as HTTP can tell."""
        record = self._record
        record.ended_at = now
        if record.status != 200:
            record.error = f"http {record.status}"
            record.message = _message(self._rest)
        elif not self._is_stream:
            self._object(now)
        elif not self._is_finished and not record.error:
            record.error = "cut"
            record.message = "the stream ended without [DONE] or a finish reason"

    def _object(self, now: float) -> None:
        chunk = self._decoded(self._rest)
        if chunk is not None:
            self._look(chunk, now)
            if chunk.choices:
                self._record.arrivals.append(now)

    def _event(self, payload: bytes, now: float) -> None:
        if payload == b"[DONE]":
            self._is_finished = True
            return
        chunk = self._decoded(payload)
        if chunk is None:
            return
        for choice in chunk.choices:
            if choice.brings_something:
                self._record.arrivals.append(now)
                self._record.finished_at = now
                break
        self._look(chunk, now)

    def _look(self, chunk: Chunk, now: float) -> None:
        record = self._record
        if chunk.error is not None:
            record.error = "error event"
            record.message = _message(msgspec.json.encode({"error": chunk.error}))
        for choice in chunk.choices:
            if choice.finish_reason is not None:
                self._is_finished = True
                record.finished_at = now
        usage = chunk.usage
        if usage is not None:
            record.num_prompt_tokens = usage.prompt_tokens
            record.num_output_tokens = usage.completion_tokens
            if usage.prompt_tokens_details is not None:
                record.num_cached_tokens = usage.prompt_tokens_details.cached_tokens

    def _decoded(self, payload: bytes) -> Chunk | None:
        try:
            return self._decoder.decode(payload)
        except msgspec.DecodeError as exc:
            self._record.error = "malformed"
            self._record.message = f"{exc}: {payload[:80].decode(errors='replace')}"
            return None


def _seconds(value: bytes | None) -> float | None:
    """Retry-After; a date in it is not understood."""
    try:
        return None if value is None else max(0.0, float(value))
    except ValueError:
        return None


def _message(body: bytes) -> str:
    """What an error body says, in OpenAI's shape or any other."""
    try:
        value = msgspec.json.decode(body)
        error = value["error"] if isinstance(value, dict) and "error" in value else value
        text = error["message"] if isinstance(error, dict) and "message" in error else error
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = body.decode(errors="replace")
    return str(text)[:_MAX_MESSAGE_LEN]
