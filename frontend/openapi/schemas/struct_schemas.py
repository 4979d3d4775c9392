"""JSON Schema of the answers whose structs say what they are."""

from __future__ import annotations

from typing import Any

import msgspec

from frontend.cluster.load_answer import Loads
from frontend.openapi.schemas.schema_words import ref
from frontend.routes.model_object import ModelList
from frontend.stored.batches.batch_answer import BatchList
from frontend.stored.files.file_answer import FileDeleted, FileList
from frontend.surfaces.chat.chat_answer import ChatChunk, ChatCompletion
from frontend.surfaces.completions.completion_answer import Completion, CompletionChunk
from frontend.surfaces.embeddings.embedding_answer import Embedding, EmbeddingList
from frontend.surfaces.generate.generate_answer import GeneratedText
from frontend.surfaces.scores.score_answer import RankedEvent, Ranking, Score, ScoreList
from frontend.surfaces.tokens.token_answers import (
    Detokenized,
    Props,
    Templated,
    Tokenized,
    TokenizerInfo,
)
from frontend.text.wire_struct import WireStruct

ANSWERS: tuple[type[WireStruct], ...] = (
    ChatCompletion,
    Completion,
    GeneratedText,
    EmbeddingList,
    ScoreList,
    Ranking,
    Tokenized,
    Detokenized,
    Templated,
    TokenizerInfo,
    Props,
    ModelList,
    Loads,
    FileList,
    FileDeleted,
    BatchList,
)
# By the answer that it is a piece of: the data of a stream's events, where they differ from it.
EVENTS: dict[type[WireStruct], tuple[type[WireStruct], ...]] = {
    ChatCompletion: (ChatChunk,),
    Completion: (CompletionChunk,),
    EmbeddingList: (Embedding, EmbeddingList),
    ScoreList: (Score, ScoreList),
    Ranking: (RankedEvent, Ranking),
}


def struct_schemas() -> dict[str, dict[str, Any]]:
    """By the names of the structs, for the components of an OpenAPI document."""
    _, schemas = msgspec.json.schema_components(
        [*ANSWERS, *(event for events in EVENTS.values() for event in events)],
        ref_template="#/components/schemas/{name}",
    )
    return schemas


def event_schema(answer: str) -> dict[str, Any]:
    """What the data of each event of a stream is, but for the last one, `[DONE]`, and an error.

    OpenAPI 3.1 has no field for it.
    """
    for kind, events in EVENTS.items():
        if kind.__name__ == answer:
            return {"x-event-schema": {"anyOf": [ref(event.__name__) for event in events]}}
    return {}
