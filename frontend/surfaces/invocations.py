"""`POST /invocations`, SageMaker's one route: the fields of a body say which API it is of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from frontend.models.model_directory import ModelDirectory
from shared.errors import InvalidRequest
from shared.protocol.reply import Surface

# From a body to its API, and what that reads. Raises RequestError.
ReadInvocation: TypeAlias = Callable[[dict[str, Any]], Awaitable[tuple[Surface, dict[str, Any]]]]
# By the field that no body of the API is without; the first that is there counts.
SURFACES: Mapping[str, Surface] = {
    "messages": Surface.CHAT,
    "prompt": Surface.COMPLETIONS,
    "input": Surface.EMBEDDINGS,
    "query": Surface.RERANK,
    "text_1": Surface.SCORE,
    "queries": Surface.SCORE,
}


async def invocation(
    body: dict[str, Any], models: ModelDirectory
) -> tuple[Surface, dict[str, Any]]:
    """The API, and its body: an endpoint has one model, so that clients name none.

    Inputs are embedded, or classified where the model does that. Raises RequestError.
    """
    surface = _surface_of(body)
    if body.get("model") is None:
        model = await models.only_model()
        body = {**body, "model": model.name}
        if surface is Surface.EMBEDDINGS and model.labels:
            surface = Surface.CLASSIFY
    return surface, body


def _surface_of(body: Mapping[str, Any]) -> Surface:
    for field, surface in SURFACES.items():
        if body.get(field) is not None:
            return surface
    names = ", ".join(f"'{field}'" for field in SURFACES)
    raise InvalidRequest(
        f"one of {names} is required", param=next(iter(SURFACES)), code="missing_field"
    )
