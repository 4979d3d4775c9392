"""One line in the log for every answer; never a prompt, an answer, or a key."""

from __future__ import annotations

import logging
import re

from frontend.inference.telemetry.recent_requests import RecentRequest
from frontend.jobs.job import Caller
from frontend.streams.generation import Generation
from shared.errors import RequestError
from shared.telemetry.log import get_logger

_FIELD = re.compile(r"[a-z][a-z_]{0,39}")

log = get_logger(__name__)


def log_finished(
    request: RecentRequest, generation: Generation, transport: str, frontend_id: str
) -> None:
    """The client has its answer, or is gone."""
    if not log.is_enabled_for(logging.INFO):
        return
    log.info(
        "request_finished",
        id=request.group_id,
        client_id=generation.client_id or None,
        trace_id=_trace_id(generation),
        tenant=request.tenant or None,
        model=request.model,
        route=request.route,
        transport=transport,
        frontend=frontend_id,
        status=request.status,
        finish=request.finish,
        prompt_tokens=request.num_prompt_tokens,
        output_tokens=request.num_output_tokens,
        cached_tokens=request.num_cached_tokens,
        **_run_times(generation, request.ttft_s),
        ttft_ms=_ms(request.ttft_s),
        itl_ms=_ms(generation.token_s),
        e2e_ms=_ms(request.e2e_s),
        resumed=generation.is_resumed,
    )


def _trace_id(generation: Generation) -> str | None:
    """The id of our own span's trace, or of the one that the client names."""
    trace = generation.span.context or generation.reply.trace
    return None if trace is None else trace.trace_id


def log_refused(
    error: RequestError, route: str, transport: str, caller: Caller | None = None
) -> None:
    """Somebody got an error in the place of an answer.

    The message may quote what was sent, and the place of a field what a client has named so: of
    these nothing but the first word is told.
    """
    field = _FIELD.match(error.param or "")
    tell = log.warning if error.status_code >= 500 else log.info
    tell(
        "request_refused",
        client_id=(caller.client_id if caller else "") or None,
        tenant=(caller.tenant.id if caller else "") or None,
        route=route,
        transport=transport,
        status=error.status_code,
        code=error.code,
        param=field[0] if field else None,
    )


def _run_times(generation: Generation, ttft_s: float | None) -> dict[str, object]:
    """As the workers have told with their finish: by their clocks, of the first choice.

    What is left of the time to the first text is the wait in the queue, and all ways between; not
    to be told of a request that was handed over, or resumed.
    """
    runs = [stream.finish.run for stream in generation.streams if stream.finish]
    run = runs[0] if runs else None
    workers = dict.fromkeys(worker for each in runs if each for worker in each.workers)
    waited_s = None
    if run is not None and ttft_s is not None and len(run.workers) == 1:
        waited_s = None if generation.is_resumed else max(0.0, ttft_s - run.prefill_s)
    return {
        "queue_ms": _ms(waited_s),
        "prefill_ms": _ms(run.prefill_s if run else None),
        "decode_ms": _ms(run.decode_s if run else None),
        "workers": list(workers),
        "hand_overs": sum(stream.num_hand_overs for stream in generation.streams),
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
