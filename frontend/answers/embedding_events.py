"""The wire format of /v1/embeddings."""

from __future__ import annotations

import array
import base64
import sys
from collections.abc import Sequence
from typing import Any

from frontend.answers.event_writer import prompt_usage_of
from frontend.answers.pooled_events import PooledEvents
from frontend.text_stream import TextStream
from shared.protocol.reply import EncodingFormat


class EmbeddingEvents(PooledEvents):
    """OpenAI's list of embeddings."""

    def _list(self, streams: Sequence[TextStream]) -> dict[str, Any]:
        return {
            "object": "list",
            "data": [self._object(stream) for stream in streams],
            "model": self._reply.model,
            "usage": prompt_usage_of(self._streams),
        }

    def _object(self, stream: TextStream) -> dict[str, Any]:
        assert stream.finish is not None
        embedding = stream.finish.embedding
        is_base64 = self._reply.encoding_format is EncodingFormat.BASE64
        return {
            "object": "embedding",
            "index": stream.reply.choice_idx,
            "embedding": base64.b64encode(embedding).decode() if is_base64 else _numbers(embedding),
        }


def _numbers(embedding: bytes) -> list[float]:
    numbers = array.array("f", embedding)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()
