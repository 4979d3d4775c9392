"""One line in the log for every answered generation; never a prompt or an answer."""

from __future__ import annotations

import asyncio

from frontend.answers.event_writer import usage_of
from frontend.generation import Generation
from shared.log import get_logger

log = get_logger(__name__)


def log_finished(generation: Generation, status: int, transport: str, frontend_id: str) -> None:
    """The client has its answer, or is gone."""
    now = asyncio.get_running_loop().time()
    timings = generation.timings
    usage = usage_of(generation.streams)
    log.info(
        "request_finished",
        id=generation.group_id,
        client_id=generation.client_id or None,
        trace_id=_trace_id(generation),
        model=generation.reply.model,
        route=generation.surface.value,
        transport=transport,
        frontend=frontend_id,
        status=status,
        finish=finish_of(generation),
        prompt_tokens=usage["prompt_tokens"],
        output_tokens=usage["completion_tokens"],
        cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
        ttft_ms=_ms(timings.first_text_at - timings.arrived_at) if timings.first_text_at else None,
        e2e_ms=_ms(now - timings.arrived_at),
        resumed=generation.is_resumed,
    )


def _trace_id(generation: Generation) -> str | None:
    """Of our own span, or of the trace that the client names."""
    trace = generation.span.context or generation.reply.trace
    return None if trace is None else trace.trace_id


def finish_of(generation: Generation) -> str:
    """The reasons of all choices, each once; or why the answer was cut."""
    if generation.interrupt is not None and not generation.is_finished:
        return generation.interrupt.value
    reasons = {stream.finish.reason.value for stream in generation.streams if stream.finish}
    return ",".join(sorted(reasons)) or "open"


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)
