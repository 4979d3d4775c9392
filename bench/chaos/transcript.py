"""What one client has received of one request, over any number of connections."""

from __future__ import annotations

import time
import zlib
from dataclasses import dataclass, field
from typing import Any

from bench.chaos.violation import Violation, ViolationKind
from frontend.text.event_id import Mark, parse_event_id


@dataclass(slots=True)
class Choice:
    """One of the answers to a request."""

    text: str = ""
    finish_reason: str | None = None
    token_ids: list[int] = field(default_factory=list)  # only /generate tells them
    logprobs: list[tuple[str, float]] = field(default_factory=list)  # token, logprob


@dataclass(slots=True)
class Transcript:
    """Grows by events. Each event's id says what the client should hold now: it is compared."""

    has_logprobs: bool = False
    choices: list[Choice] = field(default_factory=list)
    usage: tuple[int, int] | None = None  # prompt tokens, completion tokens
    rid: str = ""  # as the answer's header tells it: of the group
    last_event_id: str = ""
    is_accepted: bool = False
    is_done: bool = False
    error: dict[str, Any] | None = None
    violations: list[Violation] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)  # monotonic time of events with news

    @property
    def num_tokens(self) -> int:
        """Output tokens received, by the last event id."""
        if self.usage is not None:
            return self.usage[1]
        if not self.last_event_id:
            return 0
        return sum(mark.position for mark in parse_event_id(self.last_event_id).marks)

    def take(self, event_id: str, event: dict[str, Any]) -> None:
        """One event of a stream."""
        if "error" in event:
            self.error = event["error"]
            return
        has_news = False
        for piece in _pieces(event):
            has_news = self._append(piece) or has_news
        self._take_usage(event)
        if event_id != self.last_event_id or has_news:
            self.arrivals.append(time.monotonic())
        if event_id:
            self._compare(event_id)
            self.last_event_id = event_id

    def take_whole(self, answer: Any) -> None:
        """An answer that came in one piece."""
        for event in answer if isinstance(answer, list) else [answer]:
            if "error" in event:
                self.error = event["error"]
                return
            for piece in _pieces(event):
                self._append(piece)
            self._take_usage(event)
        self.arrivals.append(time.monotonic())
        self.is_done = True

    def _append(self, piece: _Piece) -> bool:
        while len(self.choices) <= piece.index:
            self.choices.append(Choice())
        choice = self.choices[piece.index]
        has_more = bool(piece.text or piece.token_ids or piece.logprobs)
        if choice.finish_reason is not None and has_more:
            self._blame(ViolationKind.DUPLICATED, f"{piece.text!r} came behind the finish")
        choice.text += piece.text
        choice.token_ids += piece.token_ids
        choice.logprobs += piece.logprobs
        if piece.finish_reason is not None:
            if choice.finish_reason not in (None, piece.finish_reason):
                self._blame(
                    ViolationKind.WRONG, f"{piece.finish_reason} after {choice.finish_reason}"
                )
            choice.finish_reason = piece.finish_reason
        return has_more or piece.finish_reason is not None

    def _take_usage(self, event: dict[str, Any]) -> None:
        usage = event.get("usage")
        meta = event.get("meta_info")
        if usage:
            self.usage = usage["prompt_tokens"], usage["completion_tokens"]
        elif meta and meta["finish_reason"] is not None:
            self.usage = meta["prompt_tokens"], meta["completion_tokens"]

    def _compare(self, event_id: str) -> None:
        """Whether we hold exactly what the event id says."""
        marks = parse_event_id(event_id).marks
        before = parse_event_id(self.last_event_id).marks if self.last_event_id else ()
        for index, mark in enumerate(marks):
            choice = self.choices[index] if index < len(self.choices) else Choice()
            self._compare_text(choice, mark)
            if before and mark.position < before[index].position:
                self._blame(
                    ViolationKind.DUPLICATED,
                    f"the position went back from {before[index].position} to {mark.position}",
                )
            if self.has_logprobs and len(choice.logprobs) != mark.position:
                kind = (
                    ViolationKind.GAP
                    if len(choice.logprobs) < mark.position
                    else ViolationKind.DUPLICATED
                )
                self._blame(kind, f"{len(choice.logprobs)} logprobs at position {mark.position}")

    def _compare_text(self, choice: Choice, mark: Mark) -> None:
        if len(choice.text) < mark.text_len:
            self._blame(ViolationKind.GAP, f"{len(choice.text)} characters, the id says {mark}")
        elif len(choice.text) > mark.text_len:
            self._blame(
                ViolationKind.DUPLICATED, f"{len(choice.text)} characters, the id says {mark}"
            )
        elif zlib.crc32(choice.text.encode()) != mark.checksum:
            self._blame(ViolationKind.WRONG, f"the text is not the one of {mark}")

    def _blame(self, kind: ViolationKind, detail: str) -> None:
        if not any(violation.kind is kind for violation in self.violations):
            self.violations.append(Violation(kind, detail))


@dataclass(frozen=True, slots=True)
class _Piece:
    """What an event adds to a choice, whatever the wire format."""

    index: int
    text: str
    finish_reason: str | None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[tuple[str, float]] = field(default_factory=list)


def _pieces(event: dict[str, Any]) -> list[_Piece]:
    if "meta_info" in event:
        finish = event["meta_info"]["finish_reason"]
        reason = finish["type"] if finish else None
        return [_Piece(event.get("index", 0), event["text"], reason, event["output_ids"])]
    pieces = []
    for choice in event["choices"]:
        if "text" in choice:
            text = choice["text"]
            told = choice.get("logprobs") or {"tokens": [], "token_logprobs": []}
            logprobs = list(zip(told["tokens"], told["token_logprobs"], strict=True))
        else:
            told_text = choice["delta"] if "delta" in choice else choice["message"]
            text = told_text.get("content") or ""
            content = (choice.get("logprobs") or {}).get("content") or []
            logprobs = [(one["token"], one["logprob"]) for one in content]
        pieces.append(_Piece(choice["index"], text, choice["finish_reason"], logprobs=logprobs))
    return pieces
