"""The wire format of /v1/completions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from frontend.surfaces.completions.completion_answer import Completion, CompletionChoice
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
    CompletionLogprobs,
    completion_logprobs,
    prompt_logprobs,
)
from frontend.text.text_stream import TextStream
from frontend.text.token_texts import TextOffsets, TokenTexts
from frontend.text.usage import usage_of

_NONE = slice(0, 0)  # of the tokens


class CompletionEvents:
    """`text_completion` objects, whole and in pieces. With `echo` the prompt comes first: at once,
    or with its logprobs where they are asked for.
    """

    def __init__(self, streams: Sequence[TextStream], texts: TokenTexts | None) -> None:
        self._streams = streams
        self._texts = texts  # None when nobody asks for logprobs
        self._offsets: list[TextOffsets | None] = [None] * len(streams)  # until the first tokens
        reply = self._reply = streams[0].reply
        head = encode_json(head_of(reply, "text_completion"))
        self._head = head[:-1] + b',"choices":['
        self._before_text = [self._head + b'{"index":%d,"text":' % i for i in range(len(streams))]
        self._after_text = b',"logprobs":null,"finish_reason":null}' + usage_tail(streams)
        self._reports_more = reports_more_than_text(reply, texts)

    def opening(self) -> list[bytes]:
        return [
            self._before_text[idx]
            + encode_json("" if stream.reply.echo_logprobs else stream.reply.echo)
            + self._rest(
                stream, None, None, prompt_ids_field(stream.reply) | token_ids_field(stream, _NONE)
            )
            for idx, stream in enumerate(self._streams)
            if stream.reply.tells_token_ids
            or (stream.reply.echo and not stream.reply.echo_logprobs)
        ]

    def text(self, stream: TextStream, text: str) -> bytes:
        before = self._before_text[stream.reply.choice_idx]
        if not self._reports_more:
            return before + encode_json(text) + self._after_text
        tokens = stream.emit_tokens(None if self._texts is None else MAX_EVENT_LOGPROBS)
        head = before + encode_json(_late_echo(stream, tokens) + text)
        token_ids = token_ids_field(stream, tokens)
        return head + self._rest(stream, self._logprobs(stream, tokens), None, token_ids)

    def finish(self, stream: TextStream) -> bytes:
        has_news = stream.num_pending or not stream.emitted_position
        tokens = stream.emit_tokens()
        logprobs = self._logprobs(stream, tokens) if has_news else None
        echo = encode_json(_late_echo(stream, tokens))
        head = self._before_text[stream.reply.choice_idx] + echo
        token_ids = token_ids_field(stream, tokens)
        return head + self._rest(stream, logprobs, end_reason(stream), token_ids)

    def closing(self) -> list[bytes]:
        if not self._reply.include_usage:
            return []
        return [self._head + b'],"usage":' + encode_json(usage_of(self._streams)) + b"}"]

    def _rest(
        self,
        stream: TextStream,
        logprobs: CompletionLogprobs | None,
        reason: str | None,
        token_ids: dict[str, Any],
    ) -> bytes:
        """The rest of a choice behind its text, and of the event."""
        ending = {} if reason is None else stop_fields(stream)
        fields = {"logprobs": logprobs, "finish_reason": reason, **ending, **token_ids}
        return b"," + encode_json(fields)[1:] + usage_tail(self._streams)

    def _logprobs(self, stream: TextStream, tokens: slice) -> CompletionLogprobs | None:
        """The logprobs of output tokens; with `echo` those of the prompt come before the first of
        them.
        """
        reply = stream.reply
        if self._texts is None or reply.num_top is None or reply.hides_logprobs:
            return None
        prompt = (
            stream.prompt_records(reply.num_top, with_named=True) if reply.echo_logprobs else []
        )
        offsets = self._offsets[reply.choice_idx]
        if offsets is None:
            offsets = self._offsets[reply.choice_idx] = TextOffsets(self._texts)
            if tokens.start:  # a resumed stream: the client has what is before
                before = [record.token_id for record in prompt]
                for token_id in before + stream.token_ids[: tokens.start]:
                    offsets.next(token_id)
        records = stream.records(tokens)
        if not tokens.start:
            records = prompt + records
        as_ids = reply.tokens_as_ids
        return completion_logprobs(records, self._texts, offsets, as_ids=as_ids)

    def _prompt_logprobs(self, stream: TextStream) -> dict[str, Any]:
        """vLLM's field of a choice."""
        if self._texts is None or stream.reply.num_prompt_top is None:
            return {}
        records = stream.prompt_records(stream.reply.num_prompt_top)
        return {"prompt_logprobs": prompt_logprobs(records, self._texts)}

    def whole(self, texts: Sequence[str]) -> bytes:
        return encode_json(
            Completion(
                choices=[
                    CompletionChoice(index=idx, **choice)
                    for idx, choice in enumerate(self._choices(texts))
                ],
                usage=usage_of(self._streams),
                **head_of(self._reply, "text_completion"),
            )
        )

    def _choices(self, texts: Sequence[str]) -> Iterator[dict[str, Any]]:
        """The fields of each choice, but its index."""
        for stream, text in self._kept(texts):
            if not stream.reply.num_beams:
                yield {
                    "text": stream.reply.echo + text,
                    "logprobs": self._logprobs(stream, stream.all_tokens),
                    "finish_reason": end_reason(stream),
                    **stop_fields(stream),
                    **self._prompt_logprobs(stream),
                    **prompt_ids_field(stream.reply),
                    **token_ids_field(stream, stream.all_tokens),
                }
                continue
            assert stream.finish is not None
            for beam in stream.finish.beams:
                yield {
                    "text": stream.reply.echo + beam.text,
                    **beam_fields(stream, beam),
                    **prompt_ids_field(stream.reply),
                }

    def _kept(self, texts: Sequence[str]) -> list[tuple[TextStream, str]]:
        """The choices that are returned, with their texts: all, or of each prompt the likeliest."""
        choices = list(zip(self._streams, texts, strict=True))
        reply = self._reply
        if not reply.num_kept:
            return choices
        num_made = reply.num_choices // reply.num_prompts
        groups = [choices[i : i + num_made] for i in range(0, len(choices), num_made)]
        return [
            choice
            for group in groups
            for choice in sorted(group, key=_unlikeliness)[: reply.num_kept]
        ]


def _late_echo(stream: TextStream, tokens: slice) -> str:
    """The prompt, where its logprobs are sent with it: they come with the first tokens."""
    return stream.reply.echo if stream.reply.echo_logprobs and not tokens.start else ""


def _unlikeliness(choice: tuple[TextStream, str]) -> float:
    """Smaller where the tokens of an output are likelier together."""
    stream, _ = choice
    return -sum(record.logprob for record in stream.records(stream.all_tokens))
