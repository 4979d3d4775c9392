"""Answers of /api/chat and /api/generate: a JSON object a line, the last one with numbers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from frontend.streams.durations import run_durations, total_duration
from frontend.streams.generation import Generation
from frontend.surfaces.event_feed import Event
from frontend.surfaces.ollama.ollama_answer import (
    OllamaCall,
    OllamaChat,
    OllamaFunction,
    OllamaGenerated,
    OllamaMessage,
    ollama_error_body,
)
from frontend.surfaces.tools.answer_machines import answer_parser
from frontend.surfaces.tools.answer_parser import CallDelta, TextDelta
from frontend.surfaces.tools.calls import arguments_so_far, call_id
from frontend.text.event_writer import encode_json
from shared.errors import RequestError
from shared.protocol.finish import FinishReason
from shared.protocol.reply import Surface

Part = TextDelta | CallDelta


class OllamaEvents:
    """The events of one stream. A call of a tool is told when it is complete, in one piece."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._stream = generation.streams[0]
        answer = generation.reply.answer
        self._tools = None if answer is None else answer.tools
        self._parser = None if answer is None else answer_parser(answer)
        self._is_chat = generation.surface is Surface.OLLAMA_CHAT
        self._call = CallDelta(-1)  # that is being written; -1: none

    def opening(self) -> list[Event]:
        return []

    def text(self, text: str) -> list[Event]:
        """New text; no events while it says nothing yet."""
        return [self._event(**said) for said in self._said(self._parts(text))]

    def finish(self) -> list[Event]:
        """The stream has ended by itself."""
        rest = [self._event(**said) for said in self._last_said()]
        return [*rest, Event(b"", encode_json(self._end({"content": ""})))]

    def error(self, error: RequestError) -> Event:
        """A line of its own."""
        return Event(b"", ollama_error_body(error))

    def whole(self, text: str) -> bytes:
        """The answer in one object. The stream has ended by itself."""
        message: dict[str, Any] = {"content": ""}
        for said in [*self._said(self._parts(text)), *self._last_said()]:
            for name, value in said.items():
                message[name] = message[name] + value if name in message else value
        return encode_json(self._end(message))

    def _parts(self, text: str) -> list[Part]:
        if self._parser is not None:
            return self._parser.feed(text).parts
        return [TextDelta(text)] if text else []

    def _last_said(self) -> Iterator[dict[str, Any]]:
        finish = self._stream.finish
        assert finish is not None
        if self._parser is not None:
            is_cut = finish.reason is not FinishReason.STOP
            yield from self._said(self._parser.finish(is_cut=is_cut).parts)
        yield from self._call_said()

    def _said(self, parts: list[Part]) -> Iterator[dict[str, Any]]:
        """Fields of a message for each part that is complete."""
        for part in parts:
            if isinstance(part, TextDelta):
                yield from self._call_said()
                yield {"thinking" if part.is_reasoning else "content": part.text}
            elif part.idx == self._call.idx:
                self._call.arguments += part.arguments
            else:
                yield from self._call_said()
                self._call = CallDelta(part.idx, part.name, part.arguments)

    def _call_said(self) -> Iterator[dict[str, Any]]:
        call, self._call = self._call, CallDelta(-1)
        if call.idx >= 0:
            function = OllamaFunction(
                index=call.idx, name=call.name, arguments=arguments_so_far(call.arguments)
            )
            name = call_id(self._stream.rid, call.idx, self._tools)
            yield {"tool_calls": [OllamaCall(id=name, function=function)]}

    def _event(self, **said: Any) -> Event:
        return Event(b"", encode_json(self._object({"content": "", **said}, done=False)))

    def _end(self, message: dict[str, Any]) -> OllamaChat | OllamaGenerated:
        finish = self._stream.finish
        assert finish is not None
        return self._object(
            message,
            done=True,
            done_reason=finish.reason.value,
            total_duration=total_duration(self._generation),
            **run_durations(self._generation),
        )

    def _object(self, message: dict[str, Any], **end: Any) -> OllamaChat | OllamaGenerated:
        head = answer_head(self._generation.reply.model)
        if self._is_chat:
            return OllamaChat(**head, message=OllamaMessage(role="assistant", **message), **end)
        content = message.pop("content")
        return OllamaGenerated(**head, response=content, **message, **end)


def answer_head(model: str) -> dict[str, Any]:
    """How every object of an answer begins."""
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    return {"model": model, "created_at": now}
