"""The wire formats of /classify and /pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from frontend.surfaces.classes.class_answer import ClassList, PooledList, PooledVector, TextClass
from frontend.surfaces.embeddings.embedding_events import encoded_vector, rows_of, vector_of
from frontend.surfaces.embeddings.pooled_events import PooledEvents
from frontend.text.event_writer import public_id
from frontend.text.text_stream import TextStream
from frontend.text.usage import prompt_usage_of


class PoolingEvents(PooledEvents):
    """vLLM's list of whatever was pooled."""

    def _list(self, streams: Sequence[TextStream]) -> PooledList | ClassList:
        return PooledList(**self._members(streams))

    def _members(self, streams: Sequence[TextStream]) -> dict[str, Any]:
        """The members of either list."""
        return {
            "id": public_id(self._reply),
            "object": "list",
            "created": self._reply.created,
            "model": self._reply.model,
            "data": [self._object(stream) for stream in streams],
            "usage": prompt_usage_of(self._streams),
        }

    def _object(self, stream: TextStream) -> PooledVector | TextClass:
        vector = encoded_vector(stream)
        data = vector if isinstance(vector, str) else _by_token(stream, vector)
        return PooledVector(object="pooling", index=stream.reply.choice_idx, data=data)


class ClassEvents(PoolingEvents):
    """vLLM's list of classes."""

    def __init__(self, streams: Sequence[TextStream], labels: Sequence[str]) -> None:
        super().__init__(streams)
        self._labels = labels

    def _list(self, streams: Sequence[TextStream]) -> ClassList:
        return ClassList(**self._members(streams))

    def _object(self, stream: TextStream) -> TextClass:
        """A class as the answer names it: of equally likely labels the first."""
        probs = vector_of(stream)
        has_label = len(probs) == len(self._labels)
        return TextClass(
            index=stream.reply.choice_idx,
            label=self._labels[probs.index(max(probs))] if has_label else None,
            probs=probs,
            num_classes=len(probs),
        )


def _by_token(stream: TextStream, numbers: list[float]) -> list[float | list[float]]:
    """The vector as it is, or those of each token apart."""
    if not stream.reply.is_by_token:
        return [*numbers]
    return [*rows_of(numbers, stream.reply.num_prompt_tokens)]
