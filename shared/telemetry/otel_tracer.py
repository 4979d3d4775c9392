"""Spans by OpenTelemetry's SDK: imported only where traces are wanted."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Mapping, Sequence
from typing import Self

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags
from opentelemetry.trace.span import TraceState

from shared.errors import RequestError
from shared.protocol.trace_context import TraceContext
from shared.telemetry.tracing import Attributes, Span, SpanKind

_CLOSE_TIMEOUT_S = 2.0

_KINDS = {
    SpanKind.INTERNAL: trace.SpanKind.INTERNAL,
    SpanKind.SERVER: trace.SpanKind.SERVER,
    SpanKind.PRODUCER: trace.SpanKind.PRODUCER,
    SpanKind.CONSUMER: trace.SpanKind.CONSUMER,
}


class OtelSpan:
    """One of the SDK's, which batches and sends it once it has ended."""

    def __init__(self, tracer: trace.Tracer, span: trace.Span) -> None:
        self._tracer = tracer
        self._span = span

    @property
    def is_recording(self) -> bool:
        return self._span.is_recording()

    @property
    def context(self) -> TraceContext | None:
        context = self._span.get_span_context()
        traceparent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
        return TraceContext(traceparent, context.trace_state.to_header())

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def set(self, attributes: Attributes) -> None:
        self._span.set_attributes(_known(attributes))

    def event(self, name: str, at_ns: int | None = None) -> None:
        self._span.add_event(name, timestamp=at_ns)

    def link(self, other: TraceContext) -> None:
        if other.is_sampled:
            self._span.add_link(_span_context(other))

    def child(
        self, name: str, kind: SpanKind = SpanKind.INTERNAL, attributes: Attributes | None = None
    ) -> Span:
        parent = trace.set_span_in_context(self._span, Context())
        told = _known(attributes)
        span = self._tracer.start_span(name, parent, _KINDS[kind], told)
        return OtelSpan(self._tracer, span)

    def fail(self, error_type: str, *, is_our_fault: bool = True) -> None:
        self._span.set_attribute("error.type", error_type)
        if is_our_fault:
            self._span.set_status(Status(StatusCode.ERROR))

    def end(self, at_ns: int | None = None) -> None:
        self._span.end(at_ns)

    def end_failed(self, error: BaseException) -> None:
        if isinstance(error, RequestError):
            self.fail(error.code or error.error_type, is_our_fault=error.status_code >= 500)
        elif isinstance(error, asyncio.CancelledError):
            self.fail("cancelled", is_our_fault=False)
        else:
            self.fail(type(error).__qualname__)
        self.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: object, exc: BaseException | None, traceback: object) -> None:
        if exc is None:
            self.end()
        else:
            self.end_failed(exc)


class OtelTracer:
    """Owns the SDK's provider, whose threads send what has ended."""

    is_on = True

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("jetflock")

    def start(
        self,
        name: str,
        kind: SpanKind = SpanKind.INTERNAL,
        *,
        parent: TraceContext | None = None,
        attributes: Attributes | None = None,
        at_ns: int | None = None,
    ) -> Span:
        # An empty context, not the current one: spans say themselves what they belong to.
        context = Context()
        if parent is not None:
            context = trace.set_span_in_context(NonRecordingSpan(_span_context(parent)), context)
        span = self._tracer.start_span(
            name, context, _KINDS[kind], _known(attributes), start_time=at_ns
        )
        return OtelSpan(self._tracer, span)

    def close(self) -> None:
        # The SDK waits for half a minute for a collector that does not answer: we do not.
        thread = threading.Thread(target=self._provider.shutdown, daemon=True)
        thread.start()
        thread.join(_CLOSE_TIMEOUT_S)


def _known(attributes: Attributes | None) -> Mapping[str, str | bool | int | float | Sequence[str]]:
    return {name: value for name, value in (attributes or {}).items() if value is not None}


def _span_context(context: TraceContext) -> SpanContext:
    """The context was read by `TraceContext.read`, or is sampled."""
    state = TraceState()
    with contextlib.suppress(ValueError):
        state = TraceState.from_header([context.tracestate]) if context.tracestate else state
    return SpanContext(
        trace_id=int(context.trace_id, 16),
        span_id=int(context.span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(int(context.traceparent[-2:], 16)),
        trace_state=state,
    )
