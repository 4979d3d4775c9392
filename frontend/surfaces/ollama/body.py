"""Bodies of Ollama's routes."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from frontend.fields.request_body import Refused, always, non_empty
from frontend.surfaces.ollama.conversation import Base64Images, OllamaTurn
from frontend.surfaces.tools.tool_shapes import ChatTools


class OllamaFields(msgspec.Struct, omit_defaults=True):
    """What chats and completions have in common; None means default."""

    model: str | None = None
    stream: bool | None = None
    format: Literal["", "json"] | dict[str, Any] | None = None
    options: dict[str, Any] | None = None
    think: bool | Literal["low", "medium", "high", "max"] | None = None


class OllamaChatBody(OllamaFields, omit_defaults=True):
    """The body of /api/chat."""

    messages: list[OllamaTurn] | None = None
    tools: ChatTools | None = None


class OllamaGenerateBody(OllamaFields, omit_defaults=True):
    """The body of /api/generate."""

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    images: Base64Images | None = None
    raw: bool | None = None


class OllamaEmbedBody(msgspec.Struct, omit_defaults=True):
    """The body of /api/embed."""

    model: str | None = None
    input: Any = None
    truncate: bool | None = None
    dimensions: int | None = None


class OllamaShowBody(msgspec.Struct, omit_defaults=True):
    """The body of /api/show."""

    model: str | None = None
    name: str | None = None  # its older name


class OllamaOptions(msgspec.Struct, omit_defaults=True):
    """`options` that choose tokens; None means the model's default."""

    num_predict: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


# A model is loaded by workers, and stays: nothing of a request changes how or for how long.
_LOADING = frozenset({"keep_alive", "idempotency_key", "queue_timeout_s", "request_id", "rid"})
IGNORED = _LOADING
EMBED_IGNORED = _LOADING | {"options"}
SHOW_IGNORED = frozenset({"verbose"})
REFUSED: Refused = {
    "logprobs": non_empty,
    "top_logprobs": non_empty,
    "truncate": non_empty,  # a prompt that is too long is refused
    "shift": non_empty,
}
GENERATE_REFUSED: Refused = {
    **REFUSED,
    "template": non_empty,
    "context": non_empty,
    "width": always,
    "height": always,
    "steps": always,
}
EMBED_REFUSED: Refused = {"stream": non_empty}
# They say how Ollama loads a model; its workers' flags say that here.
OPTIONS_IGNORED = frozenset(
    {
        "num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "num_keep", "numa",
        "low_vram", "f16_kv", "use_mmap", "use_mlock", "vocab_only", "logits_all",
        "mirostat_tau", "mirostat_eta",
    }
)  # fmt: skip
OPTIONS_REFUSED: Refused = {
    "mirostat": non_empty,
    "tfs_z": lambda value: value != 1,
    "penalize_newline": lambda value: value is not True,
}
