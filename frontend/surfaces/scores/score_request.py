"""Bodies of POST /v1/score: one query against one text or many, or list against list."""

from __future__ import annotations

from typing import Any

from frontend.fields.pooled_fields import POOLED_IGNORED, pooled_refusals
from frontend.fields.request_body import BodyReader
from frontend.jobs.job import Caller, Job
from frontend.jobs.prompt_encoder import PromptEncoder
from frontend.models.model_directory import ModelDirectory
from frontend.surfaces.scores.pair_request import OWN, Pair, PairFields, PairJobs
from shared.errors import InvalidRequest
from shared.protocol.reply import Surface

Texts = str | list[str]


class ScoreBody(PairFields, omit_defaults=True):
    """`queries` and `items` are other names of `text_1` and `text_2`."""

    text_1: Texts | None = None
    text_2: Texts | None = None
    queries: Texts | None = None
    items: Texts | None = None


REFUSED = pooled_refusals(ScoreBody, OWN)


class ScoreRequests:
    """Turns bodies into jobs."""

    def __init__(self, models: ModelDirectory, encoder: PromptEncoder) -> None:
        self._jobs = PairJobs(models, encoder)
        self._reader = BodyReader(ScoreBody, REFUSED, POOLED_IGNORED)

    async def job(self, raw: dict[str, Any], caller: Caller) -> Job:
        """Raises RequestError."""
        body = self._reader.read(raw, caller.unknown)
        return await self._jobs.job(caller, Surface.SCORE, body, _pairs(body))


def _pairs(body: ScoreBody) -> list[Pair]:
    """Raises InvalidRequest."""
    query_name, queries = _texts(body, "text_1", "queries")
    text_name, texts = _texts(body, "text_2", "items")
    if isinstance(texts, str):
        texts, names = [texts], [text_name]
    else:
        names = [f"{text_name}[{idx}]" for idx in range(len(texts))]
    if isinstance(queries, str):
        queries = [queries]
    if len(queries) == 1:
        queries = queries * len(texts)
    if len(queries) != len(texts):
        raise InvalidRequest(
            f"'{query_name}' holds {len(queries)} texts and '{text_name}' {len(texts)}: they must "
            f"be as many, or '{query_name}' one",
            param=text_name,
        )
    return [Pair(*pair) for pair in zip(queries, texts, names, strict=True)]


def _texts(body: ScoreBody, name: str, other_name: str) -> tuple[str, Texts]:
    """The texts, with the name that they came by. Raises InvalidRequest."""
    given = {each: getattr(body, each) for each in (name, other_name)}
    named = [(each, texts) for each, texts in given.items() if texts is not None]
    if not named:
        raise InvalidRequest(
            f"'{name}' (or '{other_name}') is required", param=name, code="missing_field"
        )
    if len(named) > 1:
        raise InvalidRequest(f"'{name}' and '{other_name}' exclude each other", param=other_name)
    if named[0][1] == []:
        raise InvalidRequest(f"'{named[0][0]}' is empty", param=named[0][0])
    return named[0]
