"""JSON Schema of all answers."""

from __future__ import annotations

from typing import Any

from frontend.openapi.schemas.cluster_schema import cluster_schema, path_schema
from frontend.openapi.schemas.file_form import file_form
from frontend.openapi.schemas.message_schemas import message_schemas
from frontend.openapi.schemas.ollama_schemas import ollama_schemas
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
from frontend.openapi.schemas.struct_schemas import struct_schemas


def answer_schemas() -> dict[str, dict[str, Any]]:
    """By name, for the components of an OpenAPI document."""
    return {
        **struct_schemas(),
        "FileForm": file_form(),
        **response_schemas(),
        **message_schemas(),
        **ollama_schemas(),
        "Generated": {"anyOf": [ref("GeneratedText"), list_of(ref("GeneratedText"))]},
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


def _error() -> dict[str, Any]:
    error = object_of(
        {"message": TEXT, "type": TEXT, "param": OPTIONAL_TEXT, "code": OPTIONAL_TEXT}
    )
    return object_of({"error": error})
