"""JSON Schema of all answers."""

from __future__ import annotations

from typing import Any

from frontend.fields.sampling_fields import SAMPLING_DEFAULTS
from frontend.openapi.schemas.batch_schemas import batch_schemas
from frontend.openapi.schemas.cluster_schema import cluster_schema, path_schema
from frontend.openapi.schemas.completion_schemas import completion_schemas
from frontend.openapi.schemas.file_schemas import file_schemas
from frontend.openapi.schemas.loads_schema import loads_schema
from frontend.openapi.schemas.message_schemas import message_schemas
from frontend.openapi.schemas.ollama_schemas import ollama_schemas
from frontend.openapi.schemas.pooled_schemas import SCORE_METHOD, pooled_schemas
from frontend.openapi.schemas.response_schemas import response_schemas
from frontend.openapi.schemas.schema_words import (
    COUNT,
    OPTIONAL_COUNT,
    OPTIONAL_TEXT,
    TEXT,
    list_of,
    object_of,
    ref,
)
from frontend.openapi.schemas.token_schemas import token_schemas
from shared.catalog.model_status import ModelStatus


def answer_schemas() -> dict[str, dict[str, Any]]:
    """By name, for the components of an OpenAPI document."""
    return {
        **file_schemas(),
        **batch_schemas(),
        **response_schemas(),
        **completion_schemas(),
        **pooled_schemas(),
        **token_schemas(),
        **message_schemas(),
        **ollama_schemas(),
        **_model_schemas(),
        "Answer": {
            "anyOf": [
                ref(name)
                for name in (
                    "ChatCompletion",
                    "Completion",
                    "EmbeddingList",
                    "ScoreList",
                    "Ranking",
                    "Generated",
                    "Message",
                    "OllamaChat",
                    "OllamaGenerated",
                    "OllamaEmbeddings",
                    "Response",
                )
            ]
        },
        "Loads": loads_schema(),
        "Cluster": cluster_schema(),
        "Path": path_schema(),
        "Aborted": object_of({"rid": TEXT, "num_aborted": COUNT}),
        "Erased": object_of({"id": TEXT, "deleted": {"const": True}, "gone_by": OPTIONAL_COUNT}),
        "Status": object_of({"status": TEXT}),
        "NotWell": object_of({"status": TEXT, "why": list_of(TEXT)}),
        "Version": object_of({"version": TEXT}),
        "Document": {"type": "object", "required": ["openapi", "paths"]},
        "Error": _error(),
    }


def _model_schemas() -> dict[str, dict[str, Any]]:
    model = object_of(
        {
            "id": TEXT,
            "object": {"const": "model"},
            "created": COUNT,
            "owned_by": TEXT,
            "root": TEXT,
            "parent": OPTIONAL_TEXT,
            "max_model_len": COUNT,
            "status": {"enum": [status.value for status in ModelStatus]},
            "tasks": list_of({"enum": ["generate", "embed", "score"]}),
            "sampling_defaults": object_of(
                {name: {"type": "number"} for name in SAMPLING_DEFAULTS}
            ),
            "score_method": SCORE_METHOD,
        },
        "score_method",
    )
    return {
        "Model": model,
        "ModelList": object_of({"object": {"const": "list"}, "data": list_of(ref("Model"))}),
    }


def _error() -> dict[str, Any]:
    error = object_of(
        {"message": TEXT, "type": TEXT, "param": OPTIONAL_TEXT, "code": OPTIONAL_TEXT}
    )
    return object_of({"error": error})
