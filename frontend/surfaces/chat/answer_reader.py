"""The text of one choice as OpenAI's chat API sends it: content, reasoning, tool calls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from msgspec import UNSET

from frontend.surfaces.chat.chat_answer import (
    CalledFunction,
    ChatDelta,
    ChatMessage,
    FunctionDelta,
    ToolCall,
    ToolCallDelta,
)
from frontend.surfaces.chat.reasoning import num_reasoning_tokens
from frontend.surfaces.tools.answer_machines import answer_parser
from frontend.surfaces.tools.answer_parser import AnswerDelta, CallDelta
from frontend.surfaces.tools.calls import call_id
from frontend.text.event_writer import end_reason
from frontend.text.text_stream import TextStream
from shared.protocol.finish import FinishReason


class AnswerReader:
    """Parses what is taken from a stream, and keeps the stream's mark at what has been sent."""

    def __init__(self, stream: TextStream) -> None:
        assert stream.reply.answer is not None
        self._stream = stream
        self._tools = stream.reply.answer.tools
        self._num_emitted = len(stream.skipped)
        self._parser = answer_parser(stream.reply.answer, num_emitted=self._num_emitted)
        self._parser.feed(stream.skipped)
        self._emitted_checksum = stream.mark.checksum
        self._num_reasoning_tokens: int | None = None  # once they are known

    def read(self, text: str) -> ChatDelta:
        """The `delta` of new text; NO_DELTA when it says nothing yet."""
        delta = self._parser.feed(text)
        self._set_mark()
        return self._delta(delta)

    def finish(self) -> tuple[ChatDelta, str]:
        """The last `delta`, and the finish reason. The stream has finished."""
        delta = self._end()
        return self._delta(delta), self._finish_reason()

    def whole(self, text: str, reason: FinishReason | None = None) -> tuple[ChatMessage, str]:
        """The `message` of all text, and the finish reason; `reason`: of a beam, its own."""
        delta = AnswerDelta(self._parser.feed(text).parts + self._end(reason).parts)
        is_only_content = not (delta.reasoning or delta.calls)
        message = ChatMessage(
            role="assistant",
            refusal=None,
            content=delta.content if delta.content or is_only_content else None,
            tool_calls=[self._call(call) for call in _joined(delta.calls)] or UNSET,
            **_reasoning(delta),
        )
        return message, self._finish_reason()

    @property
    def num_reasoning_tokens(self) -> int | None:
        """How many of the tokens so far are reasoning; None where nobody can know."""
        if self._num_reasoning_tokens is not None:
            return self._num_reasoning_tokens
        num_tokens = num_reasoning_tokens(self._parser, self._stream)
        if self._parser.has_thought and not self._parser.is_thinking:
            self._num_reasoning_tokens = num_tokens  # it stays
        return num_tokens

    def _end(self, reason: FinishReason | None = None) -> AnswerDelta:
        finish = self._stream.finish
        assert finish is not None
        is_cut = (reason or finish.reason) is not FinishReason.STOP
        delta = self._parser.finish(is_cut=is_cut)
        self._set_mark()
        return delta

    def _set_mark(self) -> None:
        """A client is never sent back to before where it is."""
        parser = self._parser
        if parser.num_read >= self._num_emitted:
            self._stream.hold_back(parser.num_read, parser.checksum)
        else:
            self._stream.hold_back(self._num_emitted, self._emitted_checksum)

    def _finish_reason(self) -> str:
        reason = end_reason(self._stream)
        if reason == FinishReason.STOP and self._parser.has_complete_calls:
            return "tool_calls"
        return reason

    def _delta(self, delta: AnswerDelta) -> ChatDelta:
        return ChatDelta(
            content=delta.content or UNSET,
            tool_calls=[self._call_delta(call) for call in delta.calls] or UNSET,
            **_reasoning(delta),
        )

    def _call_delta(self, call: CallDelta) -> ToolCallDelta:
        if not call.name:
            return ToolCallDelta(index=call.idx, function=FunctionDelta(arguments=call.arguments))
        return ToolCallDelta(
            index=call.idx,
            id=call_id(self._stream.rid, call.idx, self._tools),
            type="function",
            function=FunctionDelta(name=call.name, arguments=call.arguments),
        )

    def _call(self, call: CallDelta) -> ToolCall:
        return ToolCall(
            id=call_id(self._stream.rid, call.idx, self._tools),
            type="function",
            function=CalledFunction(name=call.name, arguments=call.arguments),
        )


def _joined(calls: Iterable[CallDelta]) -> Iterable[CallDelta]:
    """Each call in one piece."""
    joined: dict[int, CallDelta] = {}
    for call in calls:
        head = joined.setdefault(call.idx, CallDelta(call.idx, call.name))
        head.arguments += call.arguments
    return joined.values()


class _Reasoning(TypedDict, total=False):
    reasoning_content: str
    reasoning: str


def _reasoning(delta: AnswerDelta) -> _Reasoning:
    """Under the names of both conventions; nothing when there is none."""
    text = delta.reasoning
    return {"reasoning_content": text, "reasoning": text} if text else {}
