"""Which trace a request belongs to."""

from __future__ import annotations

import re
from typing import Self

import msgspec

# Version, trace id, span id, flags. A version to come may add fields; `ff`, and ids of zeros, are
# no values.
_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)
_LEN = 55
_MAX_TRACESTATE_CHARS = 512  # what W3C asks everybody to pass on


class TraceContext(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """W3C's two headers: the span that those of the request are children of, and what vendors add.

    It comes from clients: read it with `read`, or ask `is_sampled` first.
    """

    traceparent: str
    tracestate: str = ""

    @classmethod
    def read(cls, traceparent: str, tracestate: str = "") -> Self | None:
        """None for what is no traceparent: as if the header were not there."""
        head, rest = traceparent[:_LEN], traceparent[_LEN:]
        if _TRACEPARENT.fullmatch(head) is None:
            return None
        if rest and (head.startswith("00") or not rest.startswith("-")):
            return None
        is_fine = tracestate.isascii() and tracestate.isprintable()
        if not is_fine or len(tracestate) > _MAX_TRACESTATE_CHARS:
            tracestate = ""
        return cls(f"00{head[2:]}", tracestate)

    @property
    def is_sampled(self) -> bool:
        """Whether somebody records this trace; false for what is no traceparent."""
        is_one = _TRACEPARENT.fullmatch(self.traceparent) is not None
        return is_one and bool(int(self.traceparent[-2:], 16) & 1)

    @property
    def trace_id(self) -> str:
        """32 hex digits."""
        return self.traceparent[3:35]

    @property
    def span_id(self) -> str:
        """16 hex digits."""
        return self.traceparent[36:52]
