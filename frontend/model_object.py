"""Models as OpenAI shows them."""

from __future__ import annotations

from typing import Any

from frontend.answers.event_writer import encode_json
from frontend.model_directory import ModelDirectory, NamedModel


def model_list(models: ModelDirectory) -> bytes:
    """OpenAI's list of models."""
    return encode_json({"object": "list", "data": [model_object(each) for each in models.named()]})


def model_object(model: NamedModel) -> dict[str, Any]:
    """OpenAI's model object, with the context length, root and parent as vLLM names them."""
    card, adapter = model
    return {
        "id": card.name if adapter is None else adapter.name,
        "object": "model",
        "created": card.created if adapter is None else adapter.created,
        "owned_by": "jetflock",
        "root": card.name if adapter is None else adapter.path,
        "parent": None if adapter is None else card.name,
        "max_model_len": card.max_context_len,
        "tasks": ["generate"] * card.can_generate
        + ["embed"] * (card.embedding is not None)
        + ["score"] * (card.score is not None),
        **({} if card.score is None else {"score_method": card.score.method}),
    }
