"""The wire format of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from frontend.surfaces.chat.answer_reader import AnswerReader
from frontend.surfaces.chat.chat_answer import (
    NO_DELTA,
    ChatChoice,
    ChatCompletion,
    ChatDelta,
    ChatMessage,
)
from frontend.text.event_writer import (
    beam_fields,
    encode_json,
    end_reason,
    head_of,
    prompt_ids_field,
    reports_more_than_text,
    stop_fields,
    token_ids_field,
    usage_tail,
)
from frontend.text.logprob_view import (
    MAX_EVENT_LOGPROBS,
    ChatLogprobs,
    chat_logprobs,
    prompt_logprobs,
)
from frontend.text.text_stream import TextStream
from frontend.text.token_texts import TokenTexts
from frontend.text.usage import usage_of
from shared.protocol.finish import Beam


class ChatEvents:
    """`chat.completion.chunk` events, and the `chat.completion` object."""

    def __init__(self, streams: Sequence[TextStream], texts: TokenTexts | None) -> None:
        self._streams = streams
        self._texts = texts  # None when nobody asks for logprobs
        reply = self._reply = streams[0].reply
        head = encode_json(head_of(reply, "chat.completion.chunk"))
        self._readers = [AnswerReader(stream) for stream in streams if stream.reply.answer]
        self._head = head[:-1] + b',"choices":['
        self._before_text = [
            self._head + b'{"index":%d,"delta":{"content":' % i for i in range(len(streams))
        ]
        self._after_text = b'},"logprobs":null,"finish_reason":null}' + usage_tail(streams)
        self._reports_more = reports_more_than_text(reply, texts)

    @property
    def _num_reasoning(self) -> int | None:
        """Tokens of all choices so far; None where it is unknown of one, or nothing thinks."""
        answer = self._reply.answer
        if answer is None or answer.reasoning is None or self._reply.num_beams:
            return None
        counts = [reader.num_reasoning_tokens for reader in self._readers]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    def _tail(self) -> bytes:
        """How each event ends; only the usage so far has to be counted."""
        is_told = self._reply.continuous_usage
        return usage_tail(self._streams, self._num_reasoning if is_told else None)

    def opening(self) -> list[bytes]:
        events = [
            self._head
            + b'{"index":%d,"delta":{"role":"assistant","content":' % i
            + encode_json(stream.reply.echo)
            + b'},"logprobs":null,"finish_reason":null}'
            + self._tail()
            for i, stream in enumerate(self._streams)
        ]
        if prompt_ids := prompt_ids_field(self._reply):
            events[0] = events[0][:-1] + b"," + encode_json(prompt_ids)[1:]
        return events

    def text(self, stream: TextStream, text: str) -> bytes:
        if self._readers:
            return self._parsed(stream, text)
        head = self._before_text[stream.reply.choice_idx] + encode_json(text)
        if not self._reports_more:
            return head + self._after_text
        tokens = stream.emit_tokens(None if self._texts is None else MAX_EVENT_LOGPROBS)
        return head + b"}" + self._rest(stream, tokens, None)

    def _parsed(self, stream: TextStream, text: str) -> bytes:
        """The parts of an answer that is more than content."""
        delta = self._readers[stream.reply.choice_idx].read(text)
        tokens = slice(0, 0)
        if self._reports_more:
            tokens = stream.emit_tokens(None if self._texts is None else MAX_EVENT_LOGPROBS)
        if delta == NO_DELTA and tokens.start == tokens.stop:
            return b""
        return self._delta(stream, delta) + self._rest(stream, tokens, None)

    def _delta(self, stream: TextStream, delta: ChatDelta) -> bytes:
        """The event up to what `_rest` writes."""
        head = self._head + b'{"index":%d,"delta":' % stream.reply.choice_idx
        return head + encode_json(delta)

    def finish(self, stream: TextStream) -> bytes:
        delta, reason = NO_DELTA, end_reason(stream)
        if self._readers:
            delta, reason = self._readers[stream.reply.choice_idx].finish()
        return self._delta(stream, delta) + self._rest(stream, stream.emit_tokens(), reason)

    def closing(self) -> list[bytes]:
        if not self._reply.include_usage:
            return []
        return [
            self._head
            + b'],"usage":'
            + encode_json(usage_of(self._streams, self._num_reasoning))
            + b"}"
        ]

    def _rest(self, stream: TextStream, tokens: slice, reason: str | None) -> bytes:
        """The rest of a choice behind its delta, and of the event."""
        has_news = tokens.start < tokens.stop
        fields = {
            "logprobs": self._logprobs(stream, tokens) if has_news else None,
            "finish_reason": reason,
            **({} if reason is None else stop_fields(stream)),
            **token_ids_field(stream, tokens),
        }
        return b"," + encode_json(fields)[1:] + self._tail()

    def _logprobs(self, stream: TextStream, tokens: slice) -> ChatLogprobs | None:
        if self._texts is None or stream.reply.num_top is None:
            return None
        as_ids = stream.reply.tokens_as_ids
        return chat_logprobs(stream.records(tokens), self._texts, as_ids=as_ids)

    def _prompt_logprobs(self) -> dict[str, Any]:
        """vLLM's field, beside the choices."""
        stream = self._streams[0]
        if self._texts is None or stream.reply.num_prompt_top is None:
            return {}
        records = stream.prompt_records(stream.reply.num_prompt_top)
        return {"prompt_logprobs": prompt_logprobs(records, self._texts)}

    def whole(self, texts: Sequence[str]) -> bytes:
        choices = self._beams() or [
            self._whole_choice(stream, text)
            for stream, text in zip(self._streams, texts, strict=True)
        ]
        return encode_json(
            ChatCompletion(
                choices=choices,
                usage=usage_of(self._streams, self._num_reasoning),
                **head_of(self._reply, "chat.completion"),
                **self._prompt_logprobs(),
                **prompt_ids_field(self._reply),
            )
        )

    def _beams(self) -> list[ChatChoice]:
        """What a beam search has found: always the one request of the chat."""
        stream = self._streams[0]
        assert stream.finish is not None
        return [
            ChatChoice(index=idx, message=self._message(stream, beam), **beam_fields(stream, beam))
            for idx, beam in enumerate(stream.finish.beams)
        ]

    @staticmethod
    def _message(stream: TextStream, beam: Beam) -> ChatMessage:
        if stream.reply.answer is None:
            content = stream.reply.echo + beam.text
            return ChatMessage(role="assistant", refusal=None, content=content)
        message, _ = AnswerReader(stream).whole(beam.text, beam.reason)
        return _with_echo(message, stream)

    def _whole_choice(self, stream: TextStream, text: str) -> ChatChoice:
        if self._readers:
            message, reason = self._readers[stream.reply.choice_idx].whole(text)
            message = _with_echo(message, stream)
        else:
            content = stream.reply.echo + text
            message = ChatMessage(role="assistant", refusal=None, content=content)
            reason = end_reason(stream)
        return ChatChoice(
            index=stream.reply.choice_idx,
            message=message,
            logprobs=self._logprobs(stream, stream.all_tokens),
            finish_reason=reason,
            **stop_fields(stream),
            **token_ids_field(stream, stream.all_tokens),
        )


def _with_echo(message: ChatMessage, stream: TextStream) -> ChatMessage:
    """The message behind the one that it goes on with, where that is repeated."""
    echo = stream.reply.echo
    return replace(message, content=echo + (message.content or "")) if echo else message
