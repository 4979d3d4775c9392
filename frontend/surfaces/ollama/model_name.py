"""Names of models as Ollama's clients write them: with a tag, which is `latest` where none is."""

from __future__ import annotations

from frontend.fields.request_body import required_model
from frontend.models.model_directory import ModelDirectory

_LATEST = ":latest"


def tagged(name: str) -> str:
    """As lists show it: clients add the tag themselves, and look for it there."""
    return name if ":" in name.rpartition("/")[2] else name + _LATEST


def served_name(models: ModelDirectory, name: str | None) -> str:
    """Without the tag, unless a model bears it. Raises InvalidRequest."""
    name = required_model(name)
    if name.endswith(_LATEST) and all(name != each.name for each in models.named()):
        return required_model(name.removesuffix(_LATEST))
    return name
