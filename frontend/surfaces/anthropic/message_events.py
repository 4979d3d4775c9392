"""A message as Anthropic's API tells it: blocks of thinking, text and calls, in their order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from frontend.surfaces.anthropic.errors import message_error_body
from frontend.surfaces.chat.reasoning_tokens import num_reasoning_tokens
from frontend.surfaces.event_feed import Event
from frontend.surfaces.tools.answer_parser import AnswerParser, CallDelta, TextDelta
from frontend.surfaces.tools.arguments import arguments_so_far
from frontend.surfaces.tools.call_id import call_id
from frontend.text.event_writer import encode_json, public_id
from frontend.text.text_stream import TextStream
from frontend.text.usage import num_cached_tokens
from shared.errors import RequestError
from shared.protocol.finish import FinishReason

Part = TextDelta | CallDelta


class MessageEvents:
    """Of one stream. A block is open from its first part until another one comes."""

    def __init__(self, stream: TextStream) -> None:
        self._stream = stream
        answer = stream.reply.answer
        self._tools = None if answer is None else answer.tools
        self._parser = None if answer is None else AnswerParser(answer)
        self._num_blocks = 0
        self._open: str | int | None = None  # "text", "thinking", or the number of a call

    def opening(self) -> list[Event]:
        message = self._message([], None, None, self._usage_at_start())
        return [_event({"type": "message_start", "message": message})]

    def text(self, text: str) -> list[Event]:
        """New text; no events while it says nothing yet."""
        return [event for part in self._parts(text) for event in self._part_events(part)]

    def finish(self) -> list[Event]:
        """The stream has ended by itself."""
        events = [event for part in self._last_parts() for event in self._part_events(part)]
        reason, stop = self._stop()
        return [
            *events,
            *self._close(),
            _event(
                {
                    "type": "message_delta",
                    "delta": {"stop_reason": reason, "stop_sequence": stop},
                    "usage": self._usage(),
                }
            ),
            _event({"type": "message_stop"}),
        ]

    def error(self, error: RequestError) -> Event:
        return Event(b"", message_error_body(error), b"error")

    def whole(self, text: str) -> bytes:
        """The message object. The stream has ended by itself."""
        blocks: dict[int, dict[str, Any]] = {}
        arguments: dict[int, str] = {}
        for part in [*self._parts(text), *self._last_parts()]:
            if self._open != _key(part):
                self._open = _key(part)
                blocks[len(blocks)] = self._empty_block(part)
            block = blocks[len(blocks) - 1]
            if isinstance(part, CallDelta):
                arguments[len(blocks) - 1] = arguments.get(len(blocks) - 1, "") + part.arguments
            else:
                block[block["type"]] += part.text
        for idx, written in arguments.items():
            blocks[idx]["input"] = arguments_so_far(written)
        return encode_json(self._message(list(blocks.values()), *self._stop(), self._usage()))

    def _parts(self, text: str) -> list[Part]:
        if self._parser is not None:
            return self._parser.feed(text).parts
        return [TextDelta(text)] if text else []

    def _last_parts(self) -> list[Part]:
        finish = self._stream.finish
        assert finish is not None
        if self._parser is None:
            return []
        return self._parser.finish(is_cut=finish.reason is not FinishReason.STOP).parts

    def _part_events(self, part: Part) -> Iterator[Event]:
        if self._open != _key(part):
            yield from self._close()
            self._open = _key(part)
            self._num_blocks += 1
            yield self._block_event("start", content_block=self._empty_block(part))
        delta = _delta(part)
        if delta is not None:
            yield self._block_event("delta", delta=delta)

    def _close(self) -> Iterator[Event]:
        if self._open is not None:
            yield self._block_event("stop")
            self._open = None

    def _block_event(self, what: str, **fields: Any) -> Event:
        return _event({"type": f"content_block_{what}", "index": self._num_blocks - 1, **fields})

    def _empty_block(self, part: Part) -> dict[str, Any]:
        if isinstance(part, CallDelta):
            name = call_id(self._stream.rid, part.idx, self._tools)
            return {"type": "tool_use", "id": name, "name": part.name, "input": {}}
        if part.is_reasoning:
            return {"type": "thinking", "thinking": "", "signature": ""}
        return {"type": "text", "text": ""}

    def _stop(self) -> tuple[str, str | None]:
        """`stop_reason` and `stop_sequence`."""
        finish = self._stream.finish
        assert finish is not None
        if finish.reason is FinishReason.LENGTH:
            return "max_tokens", None
        if self._parser is not None and self._parser.has_complete_calls:
            return "tool_use", None
        if isinstance(finish.matched, str):
            return "stop_sequence", finish.matched
        return "end_turn", None

    def _message(
        self,
        content: list[dict[str, Any]],
        reason: str | None,
        stop: str | None,
        usage: dict[str, Any],
    ) -> dict[str, Any]:
        reply = self._stream.reply
        return {
            "id": public_id(reply),
            "type": "message",
            "role": "assistant",
            "model": reply.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": stop,
            "usage": usage,
        }

    def _usage_at_start(self) -> dict[str, Any]:
        """What the cache had is not known yet; also not when the stream is told once more."""
        return {
            "input_tokens": self._stream.reply.num_prompt_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 0,
        }

    def _usage(self) -> dict[str, Any]:
        """What the cache had counts apart."""
        num_cached = num_cached_tokens(self._stream)
        usage: dict[str, Any] = {
            "input_tokens": self._stream.reply.num_prompt_tokens - num_cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": num_cached,
            "output_tokens": self._stream.position,
        }
        if self._parser is not None:
            num_thinking = num_reasoning_tokens(self._parser, self._stream)
            if num_thinking is not None:
                usage["output_tokens_details"] = {"thinking_tokens": num_thinking}
        return usage


def _key(part: Part) -> str | int:
    """Of the block that a part belongs to."""
    if isinstance(part, CallDelta):
        return part.idx
    return "thinking" if part.is_reasoning else "text"


def _delta(part: Part) -> dict[str, Any] | None:
    if isinstance(part, CallDelta):
        if not part.arguments:
            return None
        return {"type": "input_json_delta", "partial_json": part.arguments}
    if part.is_reasoning:
        return {"type": "thinking_delta", "thinking": part.text}
    return {"type": "text_delta", "text": part.text}


def _event(fields: dict[str, Any]) -> Event:
    return Event(b"", encode_json(fields), fields["type"].encode())
