"""A tracer that keeps its spans in memory, and what tests ask of them."""

from __future__ import annotations

import json
from collections.abc import Callable

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from shared.telemetry.otel_tracer import OtelTracer
from tests.eventually import Looks


class SpanRecorder:
    """Spans of all roles that were given `tracer`, once they have ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(resource=Resource({}), shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = OtelTracer(provider)

    @property
    def spans(self) -> list[ReadableSpan]:
        """In the order of their beginning."""
        spans = self._exporter.get_finished_spans()
        return sorted(spans, key=lambda span: span.start_time or 0)

    @property
    def names(self) -> list[str]:
        return sorted(span.name for span in self.spans)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        [span] = self.named(name)
        return span

    async def wait_for(self, condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
        async for _ in Looks(timeout_s, lambda: f"only {self.names} came"):
            if condition():
                return

    def assert_tells_nothing_of(self, *texts: str) -> None:
        """Neither names nor attributes nor events hold what a client or a model has said."""
        told = " ".join(
            json.dumps([span.name, dict(span.attributes or {}), [e.name for e in span.events]])
            for span in self.spans
        )
        for text in texts:
            assert text not in told


def trace_id(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.trace_id:032x}"


def span_id(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.span_id:016x}"


def parent_id(span: ReadableSpan) -> str | None:
    return None if span.parent is None else f"{span.parent.span_id:016x}"
