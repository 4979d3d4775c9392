"""The wire formats of /v1/embeddings and /api/embed."""

from __future__ import annotations

import array
import base64
import sys
from collections.abc import Sequence

from frontend.streams.durations import total_duration
from frontend.streams.generation import Generation
from frontend.surfaces.embeddings.embedding_answer import Embedding, EmbeddingList, OllamaEmbeddings
from frontend.surfaces.embeddings.pooled_events import PooledEvents
from frontend.text.event_writer import encode_json
from frontend.text.text_stream import TextStream
from frontend.text.usage import prompt_usage_of, usage_of
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
        return Embedding(
            object="embedding", index=stream.reply.choice_idx, embedding=encoded_vector(stream)
        )


def encoded_vector(stream: TextStream) -> list[float] | str:
    """The vector of an input that has been embedded, in the format that was asked for."""
    if stream.reply.encoding_format is EncodingFormat.BASE64:
        return base64.b64encode(_bytes_of(stream)).decode()
    return vector_of(stream)


def vector_of(stream: TextStream) -> list[float]:
    """The vector of an input that has been embedded."""
    numbers = array.array("f", _bytes_of(stream))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()


def rows_of(numbers: list[float], num_rows: int) -> list[list[float]]:
    """The vectors of each token apart."""
    width = len(numbers) // num_rows
    return [numbers[at : at + width] for at in range(0, len(numbers), width)]


def _bytes_of(stream: TextStream) -> bytes:
    assert stream.finish is not None
    return stream.finish.embedding


class OllamaEmbedEvents:
    """It is never streamed."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    def opening(self) -> list[bytes]:
        raise AssertionError("it is sent in one piece")

    def text(self, stream: TextStream, text: str) -> bytes:
        raise AssertionError("it is sent in one piece")

    def finish(self, stream: TextStream) -> bytes:
        raise AssertionError("it is sent in one piece")

    def closing(self) -> list[bytes]:
        raise AssertionError("it is sent in one piece")

    def whole(self, texts: Sequence[str]) -> bytes:
        streams = self._generation.streams
        return encode_json(
            OllamaEmbeddings(
                model=self._generation.reply.model,
                embeddings=[vector_of(stream) for stream in streams],
                total_duration=total_duration(self._generation),
                load_duration=0,
                prompt_eval_count=usage_of(streams).prompt_tokens,
            )
        )
