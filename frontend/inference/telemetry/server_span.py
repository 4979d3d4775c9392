"""The span of a request at its frontend: from the body to the last byte of the answer."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import replace

from frontend.jobs.job import Caller
from frontend.streams.generation import Generation, Interrupt
from frontend.surfaces.answer import Answer
from frontend.text.event_writer import public_id
from frontend.text.usage import usage_of
from shared.protocol.finish import FinishReason
from shared.protocol.reply import ReplyParams, Surface
from shared.protocol.request import GenerateRequest
from shared.protocol.sealed_replies import unseal
from shared.telemetry.tracing import Attributes, Span, SpanKind, Tracer

_OPERATIONS = {  # OpenTelemetry's names, and our own for what it does not know
    Surface.CHAT: "chat",
    Surface.CHAT_BATCH: "chat",
    Surface.MESSAGES: "chat",
    Surface.RESPONSES: "chat",
    Surface.OLLAMA_CHAT: "chat",
    Surface.OLLAMA_GENERATE: "text_completion",
    Surface.COMPLETIONS: "text_completion",
    Surface.INFILL: "text_completion",
    Surface.GENERATE: "text_completion",
    Surface.GENERATE_SO_FAR: "text_completion",
    Surface.EMBEDDINGS: "embeddings",
    Surface.OLLAMA_EMBED: "embeddings",
    Surface.SCORE: "score",
    Surface.RERANK: "rerank",
    Surface.CLASSIFY: "classify",
    Surface.POOLING: "pooling",
    Surface.TRANSCRIPTION: "transcription",
    Surface.TRANSLATION: "translation",
    Surface.FORK: "fork",
}
_INT64 = 1 << 63  # what the wire format takes
_BY_ITSELF = (FinishReason.STOP, FinishReason.LENGTH)


class ServerSpans:
    """Begins them; that of a group whose answer is sent ends in `end_with_answer`."""

    def __init__(self, tracer: Tracer, frontend_id: str, host: str, port: int) -> None:
        self._tracer = tracer
        is_wildcard = host in ("", "0.0.0.0", "::")  # noqa: S104
        self._attributes: Attributes = {
            "gen_ai.provider.name": "jetflock",
            "server.address": socket.gethostname() if is_wildcard else host,
            "server.port": port,
            "jetflock.frontend": frontend_id,
        }

    def begin(self, caller: Caller, surface: Surface | None = None) -> Caller:
        """The caller with the span of what it asks for; `surface`: None until it is known."""
        if not self._tracer.is_on:
            return caller
        operation = "resume" if surface is None else _OPERATIONS[surface]
        span = self._tracer.start(
            operation,
            SpanKind.SERVER,
            parent=caller.trace,
            attributes={
                **self._attributes,
                "gen_ai.operation.name": None if surface is None else operation,
                "network.protocol.name": caller.transport,
                "jetflock.job_class": caller.job_class,
            },
        )
        return replace(caller, span=span)


def describe_requests(span: Span, requests: Sequence[GenerateRequest], *, stream: bool) -> None:
    """What is asked, once it is known to be in order. Stop strings are the client's own words."""
    if not span.is_recording:
        return
    describe_reply(span, unseal(requests[0].reply))
    span.set({"gen_ai.request.stream": stream or None})
    if requests[0].pooling is not None:
        return
    sampling = requests[0].sampling
    span.set(
        {
            "gen_ai.request.max_tokens": sampling.max_tokens,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.request.top_k": sampling.top_k or None,
            "gen_ai.request.seed": sampling.seed if sampling.seed < _INT64 else None,
            "gen_ai.request.frequency_penalty": sampling.frequency_penalty or None,
            "gen_ai.request.presence_penalty": sampling.presence_penalty or None,
        }
    )


def describe_reply(span: Span, reply: ReplyParams) -> None:
    """What a resumed stream knows of its request too."""
    if not span.is_recording:
        return
    operation = _OPERATIONS[reply.surface]
    span.rename(f"{operation} {reply.model}")
    span.set(
        {
            "gen_ai.operation.name": operation,
            "gen_ai.request.model": reply.model,
            "gen_ai.request.choice.count": reply.num_choices if reply.num_choices > 1 else None,
            "jetflock.request_id": reply.group_id,
        }
    )


def describe_resumed(span: Span, reply: ReplyParams) -> None:
    """It tells what another span had asked for: a link leads there."""
    if not span.is_recording:
        return
    describe_reply(span, reply)
    span.set({"jetflock.resumed": True})
    if reply.trace is not None and reply.trace != span.context:
        span.link(reply.trace)


def end_with_answer(answer: Answer, status: int, transport: str) -> None:
    """Its client has it, or is gone."""
    generation = answer.generation
    span, timings = generation.span, generation.timings
    if span.is_recording:
        _describe_answer(span, generation)
        if answer.stream and timings.first_text_at:
            first_chunk_s = timings.first_text_at - timings.arrived_at
            span.set({"gen_ai.response.time_to_first_chunk": first_chunk_s})
        if transport == "http":
            span.set({"http.response.status_code": status})
        _maybe_fail(span, generation, status)
    span.end()


def _describe_answer(span: Span, generation: Generation) -> None:
    usage = usage_of(generation.streams)
    finishes = [stream.finish for stream in generation.streams if stream.finish is not None]
    span.set(
        {
            "gen_ai.response.id": public_id(generation.reply),
            "gen_ai.response.model": generation.reply.model,
            "gen_ai.response.finish_reasons": [finish.reason.value for finish in finishes] or None,
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.output_tokens": usage.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": usage.prompt_tokens_details.cached_tokens,
        }
    )


def _maybe_fail(span: Span, generation: Generation, status: int) -> None:
    for stream in generation.streams:
        if stream.finish is not None and stream.finish.reason not in _BY_ITSELF:
            span.fail(stream.finish.reason.value, is_our_fault=status >= 500)
            return
    if generation.interrupt is not None and not generation.is_finished:
        is_gone = generation.interrupt is Interrupt.CLIENT_GONE
        span.fail(generation.interrupt.value, is_our_fault=not is_gone)
