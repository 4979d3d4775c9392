"""What Ollama's routes answer: whole, and as the lines of a stream."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from frontend.text.event_writer import encode_json
from frontend.text.wire_struct import Count, WireStruct
from shared.errors import RequestError


class OllamaFunction(WireStruct, frozen=True, kw_only=True):
    """Which function is called, and with what."""

    index: Count
    name: str
    arguments: Any  # an object, unless the model wrote something else


class OllamaCall(WireStruct, frozen=True, kw_only=True):
    """A call that the model makes."""

    id: str
    function: OllamaFunction


class OllamaMessage(WireStruct, frozen=True, kw_only=True):
    """What is new of an answer, or all of it."""

    role: Literal["assistant"]
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaCall] | UnsetType = UNSET


class OllamaChat(WireStruct, frozen=True, kw_only=True):
    """An answer of /api/chat, or a line of it; the last one has numbers, in nanoseconds."""

    model: str
    created_at: str  # ISO 8601
    message: OllamaMessage
    done: bool
    done_reason: str | UnsetType = UNSET
    total_duration: Count | UnsetType = UNSET
    load_duration: Count | UnsetType = UNSET
    prompt_eval_count: Count | UnsetType = UNSET
    prompt_eval_duration: Count | UnsetType = UNSET
    eval_count: Count | UnsetType = UNSET
    eval_duration: Count | UnsetType = UNSET


class OllamaGenerated(WireStruct, frozen=True, kw_only=True):
    """An answer of /api/generate, or a line of it; the last one has numbers, in nanoseconds."""

    model: str
    created_at: str  # ISO 8601
    response: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaCall] | UnsetType = UNSET
    done: bool
    done_reason: str | UnsetType = UNSET
    total_duration: Count | UnsetType = UNSET
    load_duration: Count | UnsetType = UNSET
    prompt_eval_count: Count | UnsetType = UNSET
    prompt_eval_duration: Count | UnsetType = UNSET
    eval_count: Count | UnsetType = UNSET
    eval_duration: Count | UnsetType = UNSET


class OllamaDetails(WireStruct, frozen=True, kw_only=True):
    """What a model is made of; what nobody knows is empty."""

    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class ListedModel(WireStruct, frozen=True, kw_only=True):
    """A model that can be asked for."""

    name: str
    model: str
    size: Count
    digest: str
    details: OllamaDetails
    modified_at: str  # ISO 8601


class OllamaTags(WireStruct, frozen=True, kw_only=True):
    """All models that can be asked for."""

    models: list[ListedModel]


class RunningModel(WireStruct, frozen=True, kw_only=True):
    """A model that a worker has loaded."""

    name: str
    model: str
    size: Count
    digest: str
    details: OllamaDetails
    expires_at: str  # ISO 8601
    size_vram: Count
    context_length: Count


class OllamaRunning(WireStruct, frozen=True, kw_only=True):
    """The models that workers have loaded."""

    models: list[RunningModel]


class OllamaShown(WireStruct, frozen=True, kw_only=True):
    """One model."""

    modelfile: str
    parameters: str  # as a Modelfile writes them
    template: str
    details: OllamaDetails
    model_info: dict[str, str | int]
    capabilities: list[str]
    modified_at: str  # ISO 8601


class OllamaVersion(WireStruct, frozen=True, kw_only=True):
    """The versions of Ollama's API and of this server."""

    version: str
    jetflock: str


class OllamaError(WireStruct, frozen=True, kw_only=True):
    """The message alone, as Ollama's clients expect it; our code and field stand beside it."""

    error: str
    code: str | None
    param: str | None


def ollama_error_body(error: RequestError) -> bytes:
    """The error object as JSON."""
    return encode_json(OllamaError(error=error.message, code=error.code, param=error.param))
