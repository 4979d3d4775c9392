"""JSON Schema of answers without text."""

from __future__ import annotations

from typing import Any

from frontend.openapi.schemas.schema_words import COUNT, TEXT, list_of, object_of, ref
from shared.protocol.reply import ScoreMethod

SCORE_METHOD = {"enum": [each.value for each in ScoreMethod]}


def pooled_schemas() -> dict[str, dict[str, Any]]:
    """Of embeddings, scores and rankings."""
    embedding = object_of(
        {
            "object": {"const": "embedding"},
            "index": COUNT,
            "embedding": {"anyOf": [list_of({"type": "number"}), TEXT]},
        }
    )
    score = object_of({"index": COUNT, "object": {"const": "score"}, "score": {"type": "number"}})
    ranked = object_of(
        {
            "index": COUNT,
            "relevance_score": {"type": "number"},
            "document": object_of({"text": TEXT}),
        },
        "document",
    )
    return {
        "EmbeddingList": object_of(
            {
                "object": {"const": "list"},
                "data": list_of(embedding),
                "model": TEXT,
                "usage": ref("Usage"),
            }
        ),
        "ScoreList": object_of(
            {
                "id": TEXT,
                "object": {"const": "list"},
                "created": COUNT,
                "model": TEXT,
                "score_method": SCORE_METHOD,
                "data": list_of(score),
                "usage": ref("Usage"),
            }
        ),
        "Ranking": object_of(
            {
                "id": TEXT,
                "object": {"const": "rerank"},
                "model": TEXT,
                "score_method": SCORE_METHOD,
                "results": list_of(ranked),
                "usage": ref("Usage"),
            }
        ),
    }
