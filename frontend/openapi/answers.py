"""JSON Schema of all answers: of the structs that are sent."""

from __future__ import annotations

from typing import Any

import msgspec

from frontend.cluster.cluster_answer import ClusterHistoryView, ClusterView, RequestPath
from frontend.cluster.loads import Loads
from frontend.cluster.usage import UsageReport
from frontend.inference.inference import Aborted
from frontend.inference.resuming.kept_streams import KeptStreams
from frontend.inference.resuming.stream_tokens import StreamTokens
from frontend.routes.model_object import ModelList
from frontend.routes.status_routes import Version
from frontend.stored.batches.batch_answer import BatchList
from frontend.stored.erasing.erasing_service import Erased
from frontend.stored.files.file_answer import FileDeleted, FileList
from frontend.surfaces.anthropic.message_answer import (
    BlockDelta,
    BlockStart,
    BlockStop,
    Message,
    MessageDelta,
    MessageError,
    MessageStart,
    MessageStop,
    MessageTokens,
)
from frontend.surfaces.chat.chat_answer import ChatChunk, ChatCompletion
from frontend.surfaces.classes.class_answer import ClassList, PooledList, PooledVector, TextClass
from frontend.surfaces.completions.completion_answer import Completion, CompletionChunk
from frontend.surfaces.embeddings.embedding_answer import Embedding, EmbeddingList, OllamaEmbeddings
from frontend.surfaces.generate.generate_answer import GeneratedText
from frontend.surfaces.infill.infill_answer import Infill
from frontend.surfaces.ollama.ollama_answer import (
    OllamaChat,
    OllamaError,
    OllamaGenerated,
    OllamaRunning,
    OllamaShown,
    OllamaTags,
    OllamaVersion,
)
from frontend.surfaces.responses.event_answer import EVENT_KINDS
from frontend.surfaces.responses.response_answer import (
    ITEM_KINDS,
    ConversationDeleted,
    ConversationObject,
    InputItems,
    InputTokens,
    Response,
    ResponseDeleted,
)
from frontend.surfaces.scores.score_answer import RankedEvent, Ranking, Score, ScoreList
from frontend.surfaces.tokens import (
    Detokenized,
    Props,
    Templated,
    Tokenized,
    TokenizerInfo,
)
from frontend.surfaces.transcripts.transcript_answer import (
    HeardText,
    TranscriptDelta,
    TranscriptDone,
)
from frontend.text.event_writer import ErrorAnswer
from frontend.text.wire_struct import WireStruct
from shared.status.health import Health

ANSWERS: tuple[type[msgspec.Struct], ...] = (
    ChatCompletion,
    Completion,
    GeneratedText,
    Infill,
    HeardText,
    EmbeddingList,
    ScoreList,
    Ranking,
    ClassList,
    PooledList,
    Tokenized,
    Detokenized,
    Templated,
    TokenizerInfo,
    Props,
    ModelList,
    Loads,
    UsageReport,
    ClusterView,
    ClusterHistoryView,
    RequestPath,
    StreamTokens,
    KeptStreams,
    FileList,
    FileDeleted,
    BatchList,
    Message,
    MessageTokens,
    MessageError,
    OllamaChat,
    OllamaGenerated,
    OllamaEmbeddings,
    OllamaShown,
    OllamaTags,
    OllamaRunning,
    OllamaVersion,
    OllamaError,
    Response,
    InputItems,
    InputTokens,
    ResponseDeleted,
    ConversationObject,
    ConversationDeleted,
    Aborted,
    Erased,
    Health,
    Version,
    ErrorAnswer,
)
# By the answer that it is a piece of: the data of a stream's events, where they differ from it.
EVENTS: dict[type[WireStruct], tuple[type[WireStruct], ...]] = {
    ChatCompletion: (ChatChunk,),
    Completion: (CompletionChunk,),
    HeardText: (TranscriptDelta, TranscriptDone),
    EmbeddingList: (Embedding, EmbeddingList),
    ScoreList: (Score, ScoreList),
    Ranking: (RankedEvent, Ranking),
    ClassList: (TextClass, ClassList),
    PooledList: (PooledVector, PooledList),
    Message: (MessageStart, BlockStart, BlockDelta, BlockStop, MessageDelta, MessageStop),
    Response: EVENT_KINDS,
    OllamaChat: (OllamaChat,),
    OllamaGenerated: (OllamaGenerated,),
}
# What a stream may be read again as.
_RESUMABLE = (
    "ChatCompletion", "Completion", "EmbeddingList", "ScoreList", "Ranking", "Generated", "Infill",
    "HeardText",
    "ClassList", "PooledList", "Message", "OllamaChat", "OllamaGenerated", "OllamaEmbeddings",
    "Response",
)  # fmt: skip


def answer_schemas() -> dict[str, dict[str, Any]]:
    """Schemas by the names of the structs, for the components of an OpenAPI document."""
    events = [event for events in EVENTS.values() for event in events]
    _, schemas = msgspec.json.schema_components(
        [*ANSWERS, *events, *ITEM_KINDS], ref_template="#/components/schemas/{name}"
    )
    texts = {"type": "array", "items": schema_ref("GeneratedText")}
    del schemas["ResponseItem"]["properties"], schemas["ResponseItem"]["required"]
    schemas["ResponseItem"]["anyOf"] = [schema_ref(kind.__name__) for kind in ITEM_KINDS]
    return {
        **schemas,
        "Generated": {"anyOf": [schema_ref("GeneratedText"), texts]},
        "Answer": {"anyOf": [schema_ref(name) for name in _RESUMABLE]},
        "Document": {"type": "object", "required": ["openapi", "paths"]},
    }


def event_schema(answer: str) -> dict[str, Any]:
    """What the data of each event of a stream is, but for the last one, `[DONE]`, and an error.

    OpenAPI 3.1 has no field for it.
    """
    for kind, events in EVENTS.items():
        if kind.__name__ == answer:
            return {"x-event-schema": {"anyOf": [schema_ref(event.__name__) for event in events]}}
    return {}


def schema_ref(name: str) -> dict[str, Any]:
    """A reference to a component of the document."""
    return {"$ref": f"#/components/schemas/{name}"}
