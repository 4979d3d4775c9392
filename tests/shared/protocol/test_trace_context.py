"""W3C's headers: what is taken, and what counts as absent."""

from __future__ import annotations

import pytest

from shared.protocol.trace_context import TraceContext

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_a_traceparent_is_read() -> None:
    context = TraceContext.read(f"00-{TRACE}-{SPAN}-01", "congo=t61rcWkgMzE")
    assert context == TraceContext(f"00-{TRACE}-{SPAN}-01", "congo=t61rcWkgMzE")
    assert (context.trace_id, context.span_id, context.is_sampled) == (TRACE, SPAN, True)


def test_the_sampled_flag_is_the_lowest_bit() -> None:
    flags = {flag: TraceContext(f"00-{TRACE}-{SPAN}-{flag}").is_sampled for flag in ("00", "02")}
    assert flags == {"00": False, "02": False}
    assert TraceContext(f"00-{TRACE}-{SPAN}-03").is_sampled


@pytest.mark.parametrize(
    "header",
    [
        "",
        "x",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-what",
        f"01-{TRACE}-{SPAN}-01what",
        f"00-{TRACE}-{SPAN}-01\n",
    ],
)
def test_what_is_malformed_counts_as_absent(header: str) -> None:
    assert TraceContext.read(header) is None
    assert not TraceContext(header).is_sampled


def test_a_version_to_come_is_read_as_ours() -> None:
    context = TraceContext.read(f"cc-{TRACE}-{SPAN}-01-more")
    assert context == TraceContext(f"00-{TRACE}-{SPAN}-01")


@pytest.mark.parametrize("state", ["ä=1", "a=1\n", "a" * 513])
def test_a_tracestate_that_nobody_has_to_pass_on_is_left_out(state: str) -> None:
    assert TraceContext.read(f"00-{TRACE}-{SPAN}-01", state) == TraceContext(
        f"00-{TRACE}-{SPAN}-01"
    )
