"""The seam to whoever records spans: nothing does, unless traces are asked for.

A span never holds a prompt, an answer or a client's own words: only names, numbers and ids of ours.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Mapping, Sequence
from typing import Protocol, Self

from shared.protocol.trace_context import TraceContext

Value = str | bool | int | float | Sequence[str]
Attributes = Mapping[str, Value | None]  # what is None is left out


class SpanKind(enum.Enum):
    """What a span says of its parent and its children."""

    INTERNAL = "internal"
    SERVER = "server"  # its parent asked for it and waits
    PRODUCER = "producer"  # it put a message into a queue
    CONSUMER = "consumer"  # it took one out


class Span(Protocol):
    """Something that takes time. As a context manager it ends with its block, and fails with it.

    Times are nanoseconds since the epoch; by default it is now.
    """

    @property
    def is_recording(self) -> bool:
        """Whether anybody will see it: else its attributes need not be computed."""

    @property
    def context(self) -> TraceContext | None:
        """What its children in other processes are told; None where nothing is traced."""

    def rename(self, name: str) -> None: ...

    def set(self, attributes: Attributes) -> None: ...

    def event(self, name: str, at_ns: int | None = None) -> None: ...

    def link(self, other: TraceContext) -> None:
        """To a span that belongs to it and is not its parent."""

    def child(
        self, name: str, kind: SpanKind = SpanKind.INTERNAL, attributes: Attributes | None = None
    ) -> Span:
        """Begins now."""

    def fail(self, error_type: str, *, is_our_fault: bool = True) -> None:
        """It did not do what it was for; `error_type` is a stable word, not a message."""

    def end(self, at_ns: int | None = None) -> None:
        """Nothing more is said of it."""

    def end_failed(self, error: BaseException) -> None:
        """Ends it with the error's kind, without its message."""

    def __enter__(self) -> Self: ...

    def __exit__(self, exc_type: object, exc: BaseException | None, traceback: object) -> None: ...


class Tracer(Protocol):
    """Begins spans and sends them away, behind the back of the event loop."""

    @property
    def is_on(self) -> bool: ...

    def start(
        self,
        name: str,
        kind: SpanKind = SpanKind.INTERNAL,
        *,
        parent: TraceContext | None = None,
        attributes: Attributes | None = None,
        at_ns: int | None = None,
    ) -> Span:
        """Without a parent it begins a trace, if the sampler says so."""

    def close(self) -> None:
        """Send what is left, for a few seconds at most."""


class NullSpan:
    """The span where nothing is traced."""

    is_recording = False
    context: TraceContext | None = None

    def rename(self, name: str) -> None: ...

    def set(self, attributes: Attributes) -> None: ...

    def event(self, name: str, at_ns: int | None = None) -> None: ...

    def link(self, other: TraceContext) -> None: ...

    def child(
        self, name: str, kind: SpanKind = SpanKind.INTERNAL, attributes: Attributes | None = None
    ) -> Span:
        return self

    def fail(self, error_type: str, *, is_our_fault: bool = True) -> None: ...

    def end(self, at_ns: int | None = None) -> None: ...

    def end_failed(self, error: BaseException) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: object, exc: BaseException | None, traceback: object) -> None: ...


class NullTracer:
    """Traces nothing."""

    is_on = False

    def start(
        self,
        name: str,
        kind: SpanKind = SpanKind.INTERNAL,
        *,
        parent: TraceContext | None = None,
        attributes: Attributes | None = None,
        at_ns: int | None = None,
    ) -> Span:
        return NO_SPAN

    def close(self) -> None: ...


NO_SPAN: Span = NullSpan()
NO_TRACER: Tracer = NullTracer()


def epoch_ns(monotonic_s: float) -> int:
    """When the monotonic clock showed this, by the wall clock as it is set now."""
    return time.time_ns() - int((time.monotonic() - monotonic_s) * 1e9)


class EndedOnError:
    """Ends a span on an error; somebody else ends it when all goes well."""

    __slots__ = ("_span",)

    def __init__(self, span: Span) -> None:
        self._span = span

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            self._span.end_failed(error)
