"""The wire format of /v1/embeddings."""

from __future__ import annotations

import array
import base64
import sys
from collections.abc import Sequence

from frontend.surfaces.embeddings.embedding_answer import Embedding, EmbeddingList
from frontend.surfaces.embeddings.pooled_events import PooledEvents
from frontend.text.text_stream import TextStream
from frontend.text.usage import prompt_usage_of
from shared.protocol.reply import EncodingFormat


class EmbeddingEvents(PooledEvents):
    """OpenAI's list of embeddings."""

    def _list(self, streams: Sequence[TextStream]) -> EmbeddingList:
        return EmbeddingList(
            object="list",
            data=[self._object(stream) for stream in streams],
            model=self._reply.model,
            usage=prompt_usage_of(self._streams),
        )

    def _object(self, stream: TextStream) -> Embedding:
        is_base64 = self._reply.encoding_format is EncodingFormat.BASE64
        return Embedding(
            object="embedding",
            index=stream.reply.choice_idx,
            embedding=base64.b64encode(_bytes_of(stream)).decode()
            if is_base64
            else vector_of(stream),
        )


def vector_of(stream: TextStream) -> list[float]:
    """Of an input that has been embedded."""
    numbers = array.array("f", _bytes_of(stream))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()


def _bytes_of(stream: TextStream) -> bytes:
    assert stream.finish is not None
    return stream.finish.embedding
