"""Bodies of POST /v1/embeddings."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from frontend.fields.field_ranges import Range
from frontend.fields.pooled_fields import POOLED_IGNORED, pooled_refusals
from frontend.fields.request_body import BodyReader
from frontend.jobs.job import Caller, Job
from frontend.models.model_directory import ServedModel
from frontend.surfaces.embeddings.pooled_inputs import InputFields, PooledInputs
from shared.errors import InvalidRequest
from shared.protocol.model_cards import EmbeddingCard
from shared.protocol.reply import EncodingFormat, Surface
from shared.protocol.sampling import PoolingKind, PoolingParams


class EmbeddingBody(InputFields, omit_defaults=True):
    """The fields that have an effect; None means default."""

    encoding_format: EncodingFormat | None = None
    dimensions: int | None = None
    pooling: Literal["last", "mean"] | None = None
    normalize: bool | None = None


REFUSED = pooled_refusals(EmbeddingBody)


class EmbeddingRequests:
    """Turns bodies into jobs."""

    def __init__(self, inputs: PooledInputs) -> None:
        self._inputs = inputs
        self._reader = BodyReader(EmbeddingBody, REFUSED, POOLED_IGNORED)

    async def job(self, raw: dict[str, Any], caller: Caller) -> Job:
        """Raises RequestError."""
        body = self._reader.read(raw, caller.unknown)
        pooling_of = partial(embedding_pooling, body)
        return await self._inputs.job(
            Surface.EMBEDDINGS, caller, body, pooling_of, body.encoding_format
        )


def embedding_pooling(body: EmbeddingBody, model: ServedModel) -> PoolingParams:
    """What the request says, else the model's way. Raises InvalidRequest."""
    card = model.card.embedding
    if card is None:
        raise InvalidRequest(f"The model '{model.name}' makes no embeddings.", param="model")
    if body.pooling is not None and card.pooling is PoolingKind.ENCODED:
        raise InvalidRequest(
            f"'pooling' is {body.pooling!r}, but '{model.name}' is an encoder, which embeds as its "
            "own files say",
            param="pooling",
        )
    if body.dimensions is not None:
        _check_dimensions(body.dimensions, card, model.name)
    return PoolingParams(
        kind=card.pooling if body.pooling is None else PoolingKind(body.pooling),
        normalize=card.normalize if body.normalize is None else body.normalize,
        dimensions=body.dimensions,
    )


def _check_dimensions(dimensions: int, card: EmbeddingCard, name: str) -> None:
    if dimensions == card.num_dimensions:
        return
    if not card.is_matryoshka:
        raise InvalidRequest(
            f"'dimensions' is {dimensions}, but the embeddings of '{name}' cannot be shortened: "
            f"they have {card.num_dimensions} dimensions",
            param="dimensions",
        )
    if card.matryoshka_dimensions and dimensions not in card.matryoshka_dimensions:
        allowed = ", ".join(map(str, card.matryoshka_dimensions))
        raise InvalidRequest(
            f"'dimensions' is {dimensions}, '{name}' has embeddings of {allowed} or "
            f"{card.num_dimensions}",
            param="dimensions",
        )
    Range(low=1, high=card.num_dimensions).check("dimensions", dimensions)
