"""Models as Ollama's clients name and see them: with a tag, which is `latest` where none is.

What nobody knows of a model is empty, or 0 where clients want a number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from frontend.fields.request_body import required_model
from frontend.models.model_directory import ModelDirectory, NamedModel, ServedModel
from frontend.surfaces.ollama.ollama_answer import (
    ListedModel,
    OllamaDetails,
    OllamaRunning,
    OllamaShown,
    OllamaTags,
    RunningModel,
)
from shared.catalog.model_status import ModelStatus
from shared.protocol.model_cards import ModelCard

_LATEST = ":latest"
_FOR_EVER = "2999-12-31T23:59:59Z"  # workers unload no model
_ARCHITECTURE = "jetflock"  # before it, in keys of `model_info`


def tags(models: Sequence[NamedModel]) -> OllamaTags:
    """All models that can be asked for."""
    return OllamaTags(
        models=[ListedModel(**_head(model), modified_at=_modified_at(model)) for model in models]
    )


def running(models: Sequence[NamedModel]) -> OllamaRunning:
    """Those that a worker has loaded."""
    loaded = [model for model in models if model.status is ModelStatus.READY]
    return OllamaRunning(
        models=[
            RunningModel(
                **_head(model),
                expires_at=_FOR_EVER,
                size_vram=0,
                context_length=model.card.max_context_len,
            )
            for model in loaded
        ]
    )


def shown(model: ServedModel) -> OllamaShown:
    """One model."""
    card, template = model.card, model.text.chat_template
    named = NamedModel(card, model.adapter)
    info: dict[str, str | int] = {
        "general.architecture": _ARCHITECTURE,
        f"{_ARCHITECTURE}.context_length": card.max_context_len,
        f"{_ARCHITECTURE}.vocab_size": card.vocab_size,
    }
    if card.embedding is not None:
        info[f"{_ARCHITECTURE}.embedding_length"] = card.embedding.num_dimensions
    has_chats = card.can_generate and template is not None
    capabilities = {
        "completion": card.can_generate,
        "tools": has_chats,
        "thinking": has_chats and template is not None and template.reasoning_parser is not None,
        "insert": card.can_generate and model.text.fill_in_middle is not None,
        "vision": card.sight is not None,
        "embedding": card.embedding is not None,
    }
    return OllamaShown(
        modelfile="",
        parameters=_parameters(model),
        template=model.text.facts.chat_template or "",
        details=_details(model.card),
        model_info=info,
        capabilities=[name for name, has in capabilities.items() if has],
        modified_at=_modified_at(named),
    )


def _head(model: NamedModel) -> dict[str, Any]:
    name = tagged(model.name)
    revision = model.card.revision if model.adapter is None else model.adapter.revision
    digest = hashlib.sha256(f"{model.card.revision}\n{revision}".encode()).hexdigest()
    return {
        "name": name,
        "model": name,
        "size": 0,
        "digest": digest,
        "details": _details(model.card),
    }


def _details(card: ModelCard) -> OllamaDetails:
    return OllamaDetails(
        parent_model="",
        format="",
        family="",
        families=[],
        parameter_size="",
        quantization_level=card.stored_format,
    )


def _modified_at(model: NamedModel) -> str:
    created = model.card.created if model.adapter is None else model.adapter.created
    return datetime.fromtimestamp(created, UTC).isoformat().replace("+00:00", "Z")


def _parameters(model: ServedModel) -> str:
    """The model's defaults, one a line, as a Modelfile writes them."""
    card = model.card
    defaults = {
        "temperature": card.default_temperature,
        "top_p": card.default_top_p,
        "top_k": card.default_top_k,
        "min_p": card.default_min_p,
        "repeat_penalty": card.default_repetition_penalty,
    }
    return "\n".join(f"{name} {value}" for name, value in defaults.items() if value is not None)


def tagged(name: str) -> str:
    """As lists show it: clients add the tag themselves, and look for it there."""
    return name if ":" in name.rpartition("/")[2] else name + _LATEST


def served_name(models: ModelDirectory, name: str | None) -> str:
    """Without the tag, unless a model bears it. Raises InvalidRequest."""
    name = required_model(name)
    if name.endswith(_LATEST) and all(name != each.name for each in models.named()):
        return required_model(name.removesuffix(_LATEST))
    return name
