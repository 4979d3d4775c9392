"""What /v1/embeddings and /api/embed answer."""

from __future__ import annotations

from typing import Literal

from frontend.text.usage import PromptUsage
from frontend.text.wire_struct import Count, WireStruct


class Embedding(WireStruct, frozen=True, kw_only=True):
    """The vector of one input; in base64 it is little-endian float32."""

    object: Literal["embedding"]
    index: Count
    embedding: list[float] | str


class EmbeddingList(WireStruct, frozen=True, kw_only=True):
    """Those of all inputs. Streamed, each comes by itself, and the list at the end is empty."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: PromptUsage


class OllamaEmbeddings(WireStruct, frozen=True, kw_only=True):
    """What /api/embed answers: the vectors of all inputs; durations are nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: Count
    load_duration: Count
    prompt_eval_count: Count
