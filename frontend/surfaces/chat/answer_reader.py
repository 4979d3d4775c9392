"""The text of one choice as OpenAI's chat API tells it: content, reasoning, tool calls."""

from __future__ import annotations

from typing import Any

from frontend.surfaces.chat.reasoning_tokens import num_reasoning_tokens
from frontend.surfaces.tools.answer_parser import AnswerDelta, AnswerParser, CallDelta
from frontend.surfaces.tools.call_id import call_id
from frontend.text.event_writer import finish_reason
from frontend.text.text_stream import TextStream
from shared.protocol.finish import FinishReason


class AnswerReader:
    """Parses what is taken from a stream, and keeps the stream's mark at what has been told."""

    def __init__(self, stream: TextStream) -> None:
        assert stream.reply.answer is not None
        self._stream = stream
        self._tools = stream.reply.answer.tools
        self._num_told = len(stream.skipped)
        self._parser = AnswerParser(stream.reply.answer, num_told=self._num_told)
        self._parser.feed(stream.skipped)
        self._told_checksum = stream.mark.checksum
        self._num_reasoning_tokens: int | None = None  # once they are known

    def read(self, text: str) -> dict[str, Any]:
        """The `delta` of new text; empty when it says nothing yet."""
        delta = self._parser.feed(text)
        self._set_mark()
        return _view(delta, self._calls(delta, is_stream=True))

    def finish(self) -> tuple[dict[str, Any], str | None]:
        """The last `delta`, and the finish reason. The stream has finished."""
        delta = self._end()
        return _view(delta, self._calls(delta, is_stream=True)), self._finish_reason()

    def whole(
        self, text: str, reason: FinishReason | None = None
    ) -> tuple[dict[str, Any], str | None]:
        """The `message` of all text, and the finish reason; `reason`: of a beam, its own."""
        delta = AnswerDelta(self._parser.feed(text).parts + self._end(reason).parts)
        message = {"content": delta.content, **_view(delta, self._calls(delta, is_stream=False))}
        if len(message) > 1 and not delta.content:
            message["content"] = None
        return message, self._finish_reason()

    @property
    def num_reasoning_tokens(self) -> int | None:
        """Of the tokens so far; None where nobody can tell."""
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
        """A client is never told to be before where it is."""
        parser = self._parser
        if parser.num_read >= self._num_told:
            self._stream.hold_back(parser.num_read, parser.checksum)
        else:
            self._stream.hold_back(self._num_told, self._told_checksum)

    def _finish_reason(self) -> str | None:
        reason = finish_reason(self._stream)
        if reason == FinishReason.STOP and self._parser.has_complete_calls:
            return "tool_calls"
        return reason

    def _calls(self, delta: AnswerDelta, *, is_stream: bool) -> list[dict[str, Any]]:
        return [self._call(call, is_stream=is_stream) for call in delta.calls]

    def _call(self, call: CallDelta, *, is_stream: bool) -> dict[str, Any]:
        view: dict[str, Any] = {"index": call.idx} if is_stream else {}
        function = {"arguments": call.arguments}
        if call.name:
            view |= {"id": call_id(self._stream.rid, call.idx, self._tools), "type": "function"}
            function = {"name": call.name, "arguments": call.arguments}
        return {**view, "function": function}


def _view(delta: AnswerDelta, calls: list[dict[str, Any]]) -> dict[str, Any]:
    """Fields that say something; reasoning under the names of both conventions."""
    view: dict[str, Any] = {}
    if delta.reasoning:
        view |= {"reasoning_content": delta.reasoning, "reasoning": delta.reasoning}
    if delta.content:
        view["content"] = delta.content
    if calls:
        view["tool_calls"] = calls
    return view
