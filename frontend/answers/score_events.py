"""The wire formats of /v1/score and /v1/rerank."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from frontend.answers.event_writer import encode_json, public_id, usage_of
from frontend.text_stream import TextStream


class ScoreEvents:
    """vLLM's list of scores; streamed, one object a pair, and an empty list at the end."""

    def __init__(self, streams: Sequence[TextStream]) -> None:
        self._streams = streams
        self._reply = streams[0].reply

    def opening(self) -> list[bytes]:
        return []

    def text(self, stream: TextStream, text: str) -> bytes:
        raise AssertionError("a score has no text")

    def finish(self, stream: TextStream) -> bytes:
        return encode_json(self._object(stream))

    def closing(self) -> list[bytes]:
        return [encode_json(self._list([]))]

    def whole(self, texts: Sequence[str]) -> bytes:
        return encode_json(self._list([self._object(stream) for stream in self._streams]))

    def _list(self, data: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": public_id(self._reply),
            "object": "list",
            "created": self._reply.created,
            "model": self._reply.model,
            "score_method": self._reply.score_method,
            "data": data,
            "usage": _usage(self._streams),
        }

    def _object(self, stream: TextStream) -> dict[str, Any]:
        return {"index": stream.reply.choice_idx, "object": "score", "score": _score(stream)}


class RerankEvents:
    """Jina's and Cohere's results, best first; streamed, one a text, and the ranking at the end."""

    def __init__(self, streams: Sequence[TextStream]) -> None:
        self._streams = streams
        self._reply = streams[0].reply

    def opening(self) -> list[bytes]:
        return []

    def text(self, stream: TextStream, text: str) -> bytes:
        raise AssertionError("a score has no text")

    def finish(self, stream: TextStream) -> bytes:
        return encode_json({"object": "rerank.result", **self._result(stream)})

    def closing(self) -> list[bytes]:
        return [self.whole(())]

    def whole(self, texts: Sequence[str]) -> bytes:
        """Of equal scores the text that came first goes first."""
        ranked = sorted(map(self._result, self._streams), key=_unlikeliness)
        return encode_json(
            {
                "id": public_id(self._reply),
                "object": "rerank",
                "model": self._reply.model,
                "score_method": self._reply.score_method,
                "results": ranked[: self._reply.num_kept or None],
                "usage": _usage(self._streams),
            }
        )

    def _result(self, stream: TextStream) -> dict[str, Any]:
        result: dict[str, Any] = {
            "index": stream.reply.choice_idx,
            "relevance_score": _score(stream),
        }
        if stream.reply.echo:  # of a text that is to be told, and none is empty
            result["document"] = {"text": stream.reply.echo}
        return result


def _score(stream: TextStream) -> float:
    """Of a pair: the one label, or "yes", which stands before "no"."""
    assert stream.finish is not None
    score: float = struct.unpack_from("<f", stream.finish.embedding)[0]
    return score


def _unlikeliness(result: dict[str, Any]) -> float:
    return -float(result["relevance_score"])


def _usage(streams: Sequence[TextStream]) -> dict[str, Any]:
    usage = usage_of(streams)
    del usage["completion_tokens"]
    return usage
