"""Bodies of POST /classify and /pooling, as vLLM has them."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import msgspec

from frontend.fields.pooled_fields import POOLED_IGNORED, PooledFields, pooled_refusals
from frontend.fields.request_body import BodyReader
from frontend.jobs.job import Caller, Job
from frontend.models.model_directory import ServedModel
from frontend.surfaces.embeddings.embedding_request import EmbeddingBody, embedding_pooling
from frontend.surfaces.embeddings.pooled_inputs import InputFields, PooledInputs
from shared.errors import InvalidRequest
from shared.protocol.reply import Surface
from shared.protocol.sampling import PoolingKind, PoolingParams


class ClassBody(InputFields, omit_defaults=True):
    """`use_activation` false asks for the bare outputs; None: as the model's files say."""

    use_activation: bool | None = None


class PoolingBody(EmbeddingBody, omit_defaults=True):
    """`task` None: the one that the model has."""

    task: Literal["embed", "classify", "token_embed", "token_classify"] | None = None
    use_activation: bool | None = None


CLASS_REFUSED = pooled_refusals(ClassBody)
POOLING_REFUSED = pooled_refusals(PoolingBody)
_BY_TOKEN = ("token_embed", "token_classify")
_OF_EMBEDDINGS = ("dimensions", "pooling", "normalize")


class ClassRequests:
    """Turns bodies into jobs whose vectors are told with the likeliest label."""

    def __init__(self, inputs: PooledInputs) -> None:
        self._inputs = inputs
        self._reader = BodyReader(ClassBody, CLASS_REFUSED, POOLED_IGNORED)

    async def job(self, raw: dict[str, Any], caller: Caller) -> Job:
        """Raises RequestError."""
        body = self._reader.read(raw, caller.unknown)
        pooling_of = partial(_class_pooling, body.use_activation)
        return await self._inputs.job(Surface.CLASSIFY, caller, body, pooling_of)


class PoolingRequests:
    """Turns bodies into jobs whose vectors are told as they are: embeddings, or outputs of a
    classifier, among them the rewards of a reward model.
    """

    def __init__(self, inputs: PooledInputs) -> None:
        self._inputs = inputs
        self._reader = BodyReader(PoolingBody, POOLING_REFUSED, POOLED_IGNORED)

    async def job(self, raw: dict[str, Any], caller: Caller) -> Job:
        """Raises RequestError."""
        body = self._reader.read(raw, caller.unknown)
        pooling_of = partial(_pooling, body)
        return await self._inputs.job(
            Surface.POOLING, caller, body, pooling_of, body.encoding_format
        )


def _pooling(body: PoolingBody, model: ServedModel) -> PoolingParams:
    """Raises InvalidRequest."""
    classifies = model.card.classifier is not None
    if classifies if body.task is None else body.task.endswith("classify"):
        _refuse(body, _OF_EMBEDDINGS, "of classes")
        pooling = _class_pooling(body.use_activation, model)
    else:
        _refuse(body, ("use_activation",), "of embeddings")
        pooling = embedding_pooling(body, model)
    return _by_token(body, pooling, model) if body.task in _BY_TOKEN else pooling


def _by_token(body: PoolingBody, pooling: PoolingParams, model: ServedModel) -> PoolingParams:
    """Raises InvalidRequest."""
    _refuse(body, ("pooling",), f"of {body.task!r}")
    if pooling.kind is PoolingKind.ENCODED:
        raise InvalidRequest(
            f"'task' is {body.task!r}, and '{model.name}' is an encoder: what its files describe "
            "makes one vector of a text",
            param="task",
        )
    kind = PoolingKind.LOGITS if pooling.kind is PoolingKind.LOGITS else PoolingKind.LAST
    return msgspec.structs.replace(pooling, kind=kind, each_token=True)


def _refuse(body: PooledFields, names: tuple[str, ...], what: str) -> None:
    for name in names:
        if (value := getattr(body, name)) is not None:
            raise InvalidRequest(f"'{name}' is {value!r}, and is no field {what}", param=name)


def _class_pooling(use_activation: bool | None, model: ServedModel) -> PoolingParams:
    """Raises InvalidRequest."""
    classifier = model.card.classifier
    if classifier is None:
        raise InvalidRequest(
            f"The model '{model.name}' has no labels: it classifies nothing.", param="model"
        )
    kind = PoolingKind.ENCODED if classifier.is_encoder else PoolingKind.LOGITS
    normalize = classifier.is_probability if use_activation is None else use_activation
    return PoolingParams(kind, normalize=normalize, are_independent=classifier.are_independent)
