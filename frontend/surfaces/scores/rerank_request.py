"""Bodies of POST /v1/rerank, as Jina, Cohere and vLLM have them."""

from __future__ import annotations

from typing import Any

import msgspec

from frontend.fields.field_ranges import Range
from frontend.fields.pooled_fields import POOLED_IGNORED, pooled_refusals
from frontend.fields.request_body import BodyReader
from frontend.jobs.job import Caller, Job
from frontend.jobs.openai_fields import MAX_ECHO_CHARS
from frontend.jobs.prompt_encoder import PromptEncoder
from frontend.models.model_directory import ModelDirectory
from frontend.surfaces.scores.pair_request import OWN, Pair, PairFields, PairJobs
from shared.errors import InvalidRequest
from shared.protocol.reply import Surface

TOP_N = Range(low=0)


class RerankDocument(msgspec.Struct):
    """A text in an object of its own."""

    text: str


class RerankBody(PairFields, omit_defaults=True):
    """`top_n` 0 means all."""

    query: str | None = None
    documents: list[str | RerankDocument] | None = None
    top_n: int | None = None
    return_documents: bool | None = None


REFUSED = pooled_refusals(RerankBody, OWN)


class RerankRequests:
    """Turns bodies into jobs."""

    def __init__(self, models: ModelDirectory, encoder: PromptEncoder) -> None:
        self._jobs = PairJobs(models, encoder)
        self._reader = BodyReader(RerankBody, REFUSED, POOLED_IGNORED)

    async def job(self, raw: dict[str, Any], caller: Caller) -> Job:
        """Raises RequestError."""
        body = self._reader.read(raw, caller.unknown)
        return await self._jobs.job(
            caller,
            Surface.RERANK,
            body,
            _pairs(body),
            top_n=_top_n(body),
            returns_texts=bool(body.return_documents),
        )


def _pairs(body: RerankBody) -> list[Pair]:
    """Raises InvalidRequest."""
    if body.query is None:
        raise InvalidRequest("'query' is required", param="query", code="missing_field")
    if body.documents is None:
        raise InvalidRequest("'documents' is required", param="documents", code="missing_field")
    if not body.documents:
        raise InvalidRequest("'documents' is empty", param="documents")
    texts = [each if isinstance(each, str) else each.text for each in body.documents]
    for idx, text in enumerate(texts):
        if body.return_documents and len(text) > MAX_ECHO_CHARS:
            raise InvalidRequest(
                f"'return_documents' repeats texts of up to {MAX_ECHO_CHARS} characters, "
                f"'documents[{idx}]' has {len(text)}",
                param="return_documents",
            )
    return [Pair(body.query, text, f"documents[{idx}]") for idx, text in enumerate(texts)]


def _top_n(body: RerankBody) -> int:
    """Raises InvalidRequest."""
    TOP_N.check("top_n", body.top_n)
    if body.top_n and body.stream:
        raise InvalidRequest(
            f"'top_n' is {body.top_n}, and 'stream' is true: texts are ranked at their end",
            param="top_n",
        )
    return body.top_n or 0
