"""Which tasks a run has, in which order: the main table comes in its first half."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bench.gpu.backends import OF_FLASHINFER
from bench.gpu.task import Task

NUM_WHOLE_MODELS = 2  # the first ones run all stages, the others only decode

# With the seconds after which each is killed: about thrice what it should take.
LIMITS_S = {
    "environment": 60.0,
    "correctness": 90.0,
    "linears": 60.0,
    "logprobs": 90.0,
    "attention": 90.0,
    "decode": 90.0,
    "prefill": 90.0,
    "offline": 120.0,
    "over_nats": 120.0,
    "generate_batch": 120.0,
    "generate": 180.0,
}


def plan(
    models: Sequence[str],
    backends: Sequence[str],
    stages: Collection[str],
    engine: Mapping[str, Any],
) -> list[Task]:
    """Of the stages that were asked for. All engines are configured as `engine` says."""
    return [
        replace(task, engine=dict(engine))
        for task in _all(models, backends)
        if task.stage in stages
    ]


def _all(models: Sequence[str], backends: Sequence[str]) -> Iterator[Task]:
    whole = models[:NUM_WHOLE_MODELS]
    small = whole[-1:]
    yield _task("environment")
    # Our own kernels first: those of flashinfer may be compiled meanwhile.
    own = [backend for backend in backends if backend not in OF_FLASHINFER]
    others = [backend for backend in backends if backend in OF_FLASHINFER]
    yield from (_task("correctness", backend=backend) for backend in own)
    yield from (_task("attention", backend=backend) for backend in own)
    yield from (_task("linears", model) for model in whole)
    yield from (_task("correctness", backend=backend) for backend in others)
    for stage, chosen in (
        ("logprobs", small),  # it is there in float32, too
        ("decode", models),
        ("prefill", whole),
    ):
        yield from (_task(stage, model) for model in chosen)
    yield from (_task("attention", backend=backend) for backend in others)
    for stage, chosen in (
        ("offline", whole),
        ("over_nats", small),  # a token of a large one hides what is added
        ("generate_batch", whole),
        ("generate", whole),
    ):
        yield from (_task(stage, model) for model in chosen)


def _task(stage: str, model: str = "", backend: str = "auto") -> Task:
    return Task(stage, LIMITS_S[stage], model, backend)
