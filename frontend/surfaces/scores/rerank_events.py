"""The wire format of /v1/rerank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from frontend.surfaces.embeddings.pooled_events import PooledEvents
from frontend.surfaces.scores.score_events import score_of
from frontend.text.event_writer import prompt_usage_of, public_id
from frontend.text.text_stream import TextStream


class RerankEvents(PooledEvents):
    """Jina's and Cohere's results, best first; streamed, the ranking is at the end."""

    def closing(self) -> list[bytes]:
        return [self.whole(())]

    def _list(self, streams: Sequence[TextStream]) -> dict[str, Any]:
        """Of equal scores the text that came first goes first."""
        ranked = sorted(map(_result, streams), key=_unlikeliness)
        return {
            "id": public_id(self._reply),
            "object": "rerank",
            "model": self._reply.model,
            "score_method": self._reply.score_method,
            "results": ranked[: self._reply.num_kept or None],
            "usage": prompt_usage_of(self._streams),
        }

    def _object(self, stream: TextStream) -> dict[str, Any]:
        return {"object": "rerank.result", **_result(stream)}


def _result(stream: TextStream) -> dict[str, Any]:
    result: dict[str, Any] = {
        "index": stream.reply.choice_idx,
        "relevance_score": score_of(stream),
    }
    if stream.reply.echo:  # of a text that is to be told, and none is empty
        result["document"] = {"text": stream.reply.echo}
    return result


def _unlikeliness(result: dict[str, Any]) -> float:
    return -float(result["relevance_score"])
