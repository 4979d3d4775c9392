"""The wire format of /v1/embeddings."""

from __future__ import annotations

import array
import base64
import sys
from collections.abc import Sequence
from typing import Any

from frontend.answers.event_writer import encode_json, usage_of
from frontend.text_stream import TextStream
from shared.protocol.reply import EncodingFormat


class EmbeddingEvents:
    """OpenAI's list of embeddings; streamed, one object an input, and an empty list at the end."""

    def __init__(self, streams: Sequence[TextStream]) -> None:
        self._streams = streams
        self._reply = streams[0].reply

    def opening(self) -> list[bytes]:
        return []

    def text(self, stream: TextStream, text: str) -> bytes:
        raise AssertionError("an embedding has no text")

    def finish(self, stream: TextStream) -> bytes:
        return encode_json(self._object(stream))

    def closing(self) -> list[bytes]:
        return [encode_json(self._list([]))]

    def whole(self, texts: Sequence[str]) -> bytes:
        return encode_json(self._list([self._object(stream) for stream in self._streams]))

    def _list(self, data: list[dict[str, Any]]) -> dict[str, Any]:
        usage = usage_of(self._streams)
        del usage["completion_tokens"]
        return {"object": "list", "data": data, "model": self._reply.model, "usage": usage}

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
