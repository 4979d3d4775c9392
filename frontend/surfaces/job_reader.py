"""Bodies of all APIs: each becomes a job, or is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from frontend.grammars.checker import GrammarChecker
from frontend.jobs.job import Caller, Job
from frontend.models.model_directory import ServedModel
from shared.errors import InvalidRequest
from shared.protocol.reply import Surface

_MAX_GRAMMARS = 16  # of one body: each is tried


class BodyReader(Protocol):
    """Turns the bodies of one API into jobs."""

    async def job(self, raw: dict[str, Any], caller: Caller) -> Job:
        """Raises RequestError."""
        ...


class JobReader:
    """Asks the reader of the body's API, then checks what all of them have in common."""

    def __init__(
        self, readers: Mapping[Surface, BodyReader], grammar_checker: GrammarChecker
    ) -> None:
        self._readers = dict(readers)
        self._grammar_checker = grammar_checker

    async def job(self, surface: Surface, body: dict[str, Any], caller: Caller) -> Job:
        """Raises RequestError."""
        with caller.span.child("prepare"):
            return await self._job(surface, body, caller)

    async def _job(self, surface: Surface, body: dict[str, Any], caller: Caller) -> Job:
        job = await self._readers[surface].job(body, caller)
        makes_text = job.pooling is None and job.transcript is None
        if makes_text and not job.model.card.can_generate:
            raise _generates_nothing(job.model)
        samplings = job.samplings or (job.sampling,)
        if job.model.card.keeps_states and any(each.params.beam for each in samplings):
            raise _searches_no_beams(job.model)
        grammars = {
            sampling.params.grammar: sampling.grammar_param
            for sampling in samplings
            if sampling.params.grammar is not None
        }
        if len(grammars) > _MAX_GRAMMARS:
            param = next(iter(grammars.values()))
            raise InvalidRequest(
                f"'{param}' is different for {len(grammars)} prompts, at most {_MAX_GRAMMARS}",
                param=param,
            )
        for grammar, param in grammars.items():
            await self._grammar_checker.check(grammar, param)
        return job


def _generates_nothing(model: ServedModel) -> InvalidRequest:
    does, route = "makes embeddings", "/v1/embeddings"
    if model.card.hearing is not None:
        does, route = "transcribes audio", "/v1/audio/transcriptions"
    if model.card.classifier is not None:
        does, route = "classifies texts", "/classify"
    if model.card.score is not None:
        does, route = "scores pairs of texts", "/v1/score or /v1/rerank"
    message = f"The model '{model.name}' {does}, and generates nothing; use {route}."
    return InvalidRequest(message, param="model")


def _searches_no_beams(model: ServedModel) -> InvalidRequest:
    message = (
        f"'use_beam_search' is true, and is not possible with the model '{model.name}': the state "
        "of its recurrent layers is kept at few places of a text, so that each token of each beam "
        "would compute many others again"
    )
    return InvalidRequest(message, param="use_beam_search")
