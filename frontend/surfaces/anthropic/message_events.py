"""A message as Anthropic's API tells it: blocks of thinking, text and calls, in their order."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET, UnsetType

from frontend.surfaces.anthropic.message_answer import (
    Block,
    BlockDelta,
    BlockStart,
    BlockStop,
    InputPiece,
    Message,
    MessageDelta,
    MessageEvent,
    MessageOutcome,
    MessageStart,
    MessageStop,
    MessageUsage,
    Piece,
    StopReason,
    TextBlock,
    TextPiece,
    ThinkingBlock,
    ThinkingPiece,
    ThinkingTokens,
    ToolUseBlock,
    message_error_body,
)
from frontend.surfaces.chat.reasoning import num_reasoning_tokens
from frontend.surfaces.event_feed import Event
from frontend.surfaces.tools.answer_machines import answer_parser
from frontend.surfaces.tools.answer_parser import CallDelta, TextDelta
from frontend.surfaces.tools.calls import arguments_so_far, call_id
from frontend.text.event_writer import encode_json, public_id
from frontend.text.text_stream import TextStream
from frontend.text.usage import num_cached_tokens
from shared.errors import RequestError
from shared.protocol.finish import FinishReason

Part = TextDelta | CallDelta


class MessageEvents:
    """The events of one stream. A block is open from its first part until another one comes."""

    def __init__(self, stream: TextStream) -> None:
        self._stream = stream
        answer = stream.reply.answer
        self._tools = None if answer is None else answer.tools
        self._parser = None if answer is None else answer_parser(answer)
        self._num_blocks = 0
        self._open: str | int | None = None  # "text", "thinking", or the number of a call

    def opening(self) -> list[Event]:
        message = self._message([], None, None, self._usage_at_start())
        return [_event(MessageStart(message=message))]

    def text(self, text: str) -> list[Event]:
        """New text; no events while it says nothing yet."""
        return [event for part in self._parts(text) for event in self._part_events(part)]

    def finish(self) -> list[Event]:
        """The stream has ended by itself."""
        events = [event for part in self._last_parts() for event in self._part_events(part)]
        reason, matched = self._stop()
        stop = MessageOutcome(stop_reason=reason, stop_sequence=matched)
        return [
            *events,
            *self._close(),
            _event(MessageDelta(delta=stop, usage=self._usage())),
            _event(MessageStop()),
        ]

    def error(self, error: RequestError) -> Event:
        return Event(b"", message_error_body(error), b"error")

    def whole(self, text: str) -> bytes:
        """The message object. The stream has ended by itself."""
        blocks: list[tuple[Part, list[str]]] = []  # the first part of each, and its pieces
        for part in [*self._parts(text), *self._last_parts()]:
            if self._open != _key(part):
                self._open = _key(part)
                blocks.append((part, []))
            blocks[-1][1].append(part.arguments if isinstance(part, CallDelta) else part.text)
        content = [self._block(first, "".join(pieces)) for first, pieces in blocks]
        return encode_json(self._message(content, *self._stop(), self._usage()))

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
            block = self._block(part, "")
            yield _event(BlockStart(index=self._num_blocks - 1, content_block=block))
        delta = _delta(part)
        if delta is not None:
            yield _event(BlockDelta(index=self._num_blocks - 1, delta=delta))

    def _close(self) -> Iterator[Event]:
        if self._open is not None:
            yield _event(BlockStop(index=self._num_blocks - 1))
            self._open = None

    def _block(self, part: Part, text: str) -> Block:
        """A block of the same kind as a part of it, with this text or these arguments."""
        if isinstance(part, CallDelta):
            name = call_id(self._stream.rid, part.idx, self._tools)
            return ToolUseBlock(id=name, name=part.name, input=arguments_so_far(text))
        if part.is_reasoning:
            return ThinkingBlock(thinking=text, signature="")
        return TextBlock(text=text)

    def _stop(self) -> tuple[StopReason, str | None]:
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
        content: list[Block],
        reason: StopReason | None,
        stop: str | None,
        usage: MessageUsage,
    ) -> Message:
        reply = self._stream.reply
        return Message(
            id=public_id(reply),
            type="message",
            role="assistant",
            model=reply.model,
            content=content,
            stop_reason=reason,
            stop_sequence=stop,
            usage=usage,
        )

    def _usage_at_start(self) -> MessageUsage:
        """What the cache had is not known yet; also not when the stream is told once more."""
        return MessageUsage(
            input_tokens=self._stream.reply.num_prompt_tokens,
            cache_creation_input_tokens=0,
            cache_read_input_tokens=0,
            output_tokens=0,
        )

    def _usage(self) -> MessageUsage:
        num_cached = num_cached_tokens(self._stream)
        return MessageUsage(
            input_tokens=self._stream.reply.num_prompt_tokens - num_cached,
            cache_creation_input_tokens=0,
            cache_read_input_tokens=num_cached,
            output_tokens=self._stream.position,
            output_tokens_details=self._thinking_tokens(),
        )

    def _thinking_tokens(self) -> ThinkingTokens | UnsetType:
        """UNSET where nobody can tell."""
        if self._parser is None:
            return UNSET
        count = num_reasoning_tokens(self._parser, self._stream)
        return UNSET if count is None else ThinkingTokens(thinking_tokens=count)


def _key(part: Part) -> str | int:
    """The key of the block that a part belongs to."""
    if isinstance(part, CallDelta):
        return part.idx
    return "thinking" if part.is_reasoning else "text"


def _delta(part: Part) -> Piece | None:
    if isinstance(part, CallDelta):
        return InputPiece(partial_json=part.arguments) if part.arguments else None
    if part.is_reasoning:
        return ThinkingPiece(thinking=part.text)
    return TextPiece(text=part.text)


def _event(event: MessageEvent) -> Event:
    name = event.__struct_config__.tag
    assert isinstance(name, str)
    return Event(b"", encode_json(event), name.encode())
