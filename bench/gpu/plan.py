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
    "tests": 180.0,
    "linears": 60.0,
    "logprobs": 90.0,
    "attention": 90.0,
    "decode": 90.0,
    "prefill": 90.0,
    "offline": 150.0,
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
    """All stages once within twelve minutes; then those that are left of the large model."""
    whole = models[:NUM_WHOLE_MODELS]
    *large, small = whole
    yield _task("environment")
    # Our own kernels first: those of flashinfer may be compiled meanwhile.
    own = [backend for backend in backends if backend not in OF_FLASHINFER]
    others = [backend for backend in backends if backend in OF_FLASHINFER]
    yield from (_task("correctness", backend=backend) for backend in own)
    yield from (_task("attention", backend=backend) for backend in own)
    yield _task("tests")
    yield from (_task("linears", model) for model in whole)
    yield from (_task("correctness", backend=backend) for backend in others)
    yield _task("logprobs", small)  # it is there in float32, too
    yield from (_task("decode", model) for model in models)
    yield from (_task("prefill", model) for model in whole)
    # A token of a large model would hide what is added over NATS.
    for stage in ("offline", "over_nats", "generate_batch", "generate"):
        yield _task(stage, small)
    for stage in ("offline", "generate_batch", "generate"):
        yield from (_task(stage, model) for model in large)
    yield from (_task("attention", backend=backend) for backend in others)
    yield from (_task("tests", backend=backend) for backend in others)  # these compile for minutes


def _task(stage: str, model: str = "", backend: str = "auto") -> Task:
    return Task(stage, LIMITS_S[stage], model, backend)
