"""How long an answer took, in nanoseconds, as Ollama tells it."""

from __future__ import annotations

import asyncio
from typing import Any

from frontend.streams.generation import Generation
from shared.protocol.finish import RunFacts


def total_duration(generation: Generation) -> int:
    """Since it came in; of a request that is read again, as far as its worker knows."""
    if not generation.is_resumed:
        return _ns(asyncio.get_running_loop().time() - generation.timings.arrived_at)
    run = _run(generation)
    return _ns(run.queue_s + run.prefill_s + run.decode_s)


def run_durations(generation: Generation) -> dict[str, Any]:
    """The durations of the model's work, as the worker has measured it.

    A model is loaded for no request.
    """
    run = _run(generation)
    return {
        "load_duration": 0,
        "prompt_eval_count": generation.reply.num_prompt_tokens,
        "prompt_eval_duration": _ns(run.prefill_s),
        "eval_count": generation.streams[0].position,
        "eval_duration": _ns(run.decode_s),
    }


def _run(generation: Generation) -> RunFacts:
    finish = generation.streams[0].finish
    return (finish.run if finish is not None else None) or RunFacts()


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
