"""Models as OpenAI shows them."""

from __future__ import annotations

from typing import Any

from frontend.fields.sampling_fields import sampling_defaults
from frontend.models.model_directory import ModelDirectory, NamedModel
from frontend.text.event_writer import encode_json


def model_list(models: ModelDirectory) -> bytes:
    """OpenAI's list of models."""
    data = [
        model_object(each, use_model_defaults=models.use_model_defaults) for each in models.named()
    ]
    return encode_json({"object": "list", "data": data})


def model_object(model: NamedModel, *, use_model_defaults: bool) -> dict[str, Any]:
    """OpenAI's model object, with the context length, root and parent as vLLM names them, whether
    it is served, and how it samples when a request says nothing.
    """
    card, adapter, status = model
    return {
        "id": model.name,
        "object": "model",
        "created": card.created if adapter is None else adapter.created,
        "owned_by": "jetflock",
        "root": card.name if adapter is None else adapter.path,
        "parent": None if adapter is None else card.name,
        "max_model_len": card.max_context_len,
        "status": status.value,
        "tasks": ["generate"] * card.can_generate
        + ["embed"] * (card.embedding is not None)
        + ["score"] * (card.score is not None),
        "sampling_defaults": sampling_defaults(card, use_model_defaults=use_model_defaults),
        **({} if card.score is None else {"score_method": card.score.method}),
    }
