"""The wire format of /v1/rerank."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from frontend.surfaces.embeddings.pooled_events import PooledEvents
from frontend.surfaces.scores.score_answer import (
    RankedDocument,
    RankedEvent,
    RankedText,
    Ranking,
)
from frontend.surfaces.scores.score_events import score_of
from frontend.text.event_writer import public_id
from frontend.text.text_stream import TextStream
from frontend.text.usage import prompt_usage_of


class RerankEvents(PooledEvents):
    """Jina's and Cohere's results, best first; streamed, the ranking is at the end."""

    def closing(self) -> list[bytes]:
        return [self.whole(())]

    def _list(self, streams: Sequence[TextStream]) -> Ranking:
        """Of equal scores the text that came first goes first."""
        assert self._reply.score_method is not None
        ranked = sorted(map(_result, streams), key=_unlikeliness)
        return Ranking(
            id=public_id(self._reply),
            object="rerank",
            model=self._reply.model,
            score_method=self._reply.score_method,
            results=ranked[: self._reply.num_kept or None],
            usage=prompt_usage_of(self._streams),
        )

    def _object(self, stream: TextStream) -> RankedEvent:
        result = _result(stream)
        return RankedEvent(
            object="rerank.result",
            index=result.index,
            relevance_score=result.relevance_score,
            document=result.document,
        )


def _result(stream: TextStream) -> RankedDocument:
    echo = stream.reply.echo  # of a text that is to be told, and none is empty
    return RankedDocument(
        index=stream.reply.choice_idx,
        relevance_score=score_of(stream),
        document=RankedText(text=echo) if echo else UNSET,
    )


def _unlikeliness(result: RankedDocument) -> float:
    return -result.relevance_score
