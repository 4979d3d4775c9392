"""JSON Schema of answers in Ollama's words."""

from __future__ import annotations

from typing import Any

from frontend.openapi.schemas.schema_words import COUNT, OPTIONAL_TEXT, TEXT, list_of, object_of

_ANY: dict[str, Any] = {"type": "object"}
_DURATIONS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")
_COUNTS = ("prompt_eval_count", "eval_count")


def ollama_schemas() -> dict[str, dict[str, Any]]:
    """Answers, models, and an error."""
    message = {
        "role": {"const": "assistant"},
        "content": TEXT,
        "thinking": TEXT,
        "tool_calls": list_of(_ANY),
    }
    listed = {
        "name": TEXT,
        "model": TEXT,
        "size": COUNT,
        "digest": TEXT,
        "details": _ANY,
    }
    shown = {
        **dict.fromkeys(("modelfile", "parameters", "template", "modified_at"), TEXT),
        "details": _ANY,
        "model_info": _ANY,
        "capabilities": list_of(TEXT),
    }
    running = {"expires_at": TEXT, "size_vram": COUNT, "context_length": COUNT}
    embedded = {
        "model": TEXT,
        "embeddings": list_of(list_of({"type": "number"})),
        **dict.fromkeys(("total_duration", "load_duration", "prompt_eval_count"), COUNT),
    }
    return {
        "OllamaChat": _answer({"message": object_of(message, "thinking", "tool_calls")}),
        "OllamaGenerated": _answer({"response": TEXT, "thinking": TEXT, "tool_calls": list_of({})}),
        "OllamaEmbeddings": object_of(embedded),
        "OllamaShown": object_of(shown),
        "OllamaTags": object_of({"models": list_of(object_of({**listed, "modified_at": TEXT}))}),
        "OllamaRunning": object_of({"models": list_of(object_of({**listed, **running}))}),
        "OllamaVersion": object_of({"version": TEXT, "jetflock": TEXT}),
        "OllamaError": object_of({"error": TEXT, "code": OPTIONAL_TEXT, "param": OPTIONAL_TEXT}),
    }


def _answer(said: dict[str, Any]) -> dict[str, Any]:
    """Numbers are of the last object of a stream, and none of a model that was only loaded."""
    numbers = dict.fromkeys((*_DURATIONS, *_COUNTS), COUNT)
    fields = {
        "model": TEXT,
        "created_at": TEXT,
        **said,
        "done": {"type": "boolean"},
        "done_reason": TEXT,
        **numbers,
    }
    return object_of(fields, "thinking", "tool_calls", "done_reason", *numbers)
