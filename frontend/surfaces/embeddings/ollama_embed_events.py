"""The answer of /api/embed: a vector an input, in one object."""

from __future__ import annotations

from collections.abc import Sequence

from frontend.streams.durations import total_duration
from frontend.streams.generation import Generation
from frontend.surfaces.embeddings.embedding_answer import OllamaEmbeddings
from frontend.surfaces.embeddings.embedding_events import vector_of
from frontend.text.event_writer import encode_json
from frontend.text.text_stream import TextStream
from frontend.text.usage import usage_of


class OllamaEmbedEvents:
    """It is never streamed."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    def opening(self) -> list[bytes]:
        raise AssertionError("it is told in one piece")

    def text(self, stream: TextStream, text: str) -> bytes:
        raise AssertionError("it is told in one piece")

    def finish(self, stream: TextStream) -> bytes:
        raise AssertionError("it is told in one piece")

    def closing(self) -> list[bytes]:
        raise AssertionError("it is told in one piece")

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
