"""The wire formats of /v1/score and /v1/rerank."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from msgspec import UNSET

from frontend.surfaces.embeddings.pooled_events import PooledEvents
from frontend.surfaces.scores.score_answer import (
    RankedDocument,
    RankedEvent,
    RankedText,
    Ranking,
    Score,
    ScoreList,
)
from frontend.text.event_writer import public_id
from frontend.text.text_stream import TextStream
from frontend.text.usage import prompt_usage_of


class ScoreEvents(PooledEvents):
    """vLLM's list of scores."""

    def _list(self, streams: Sequence[TextStream]) -> ScoreList:
        assert self._reply.score_method is not None
        return ScoreList(
            id=public_id(self._reply),
            object="list",
            created=self._reply.created,
            model=self._reply.model,
            score_method=self._reply.score_method,
            data=[self._object(stream) for stream in streams],
            usage=prompt_usage_of(self._streams),
        )

    def _object(self, stream: TextStream) -> Score:
        return Score(index=stream.reply.choice_idx, object="score", score=score_of(stream))


def score_of(stream: TextStream) -> float:
    """The score of a pair: the one label, or "yes", which stands before "no"."""
    assert stream.finish is not None
    score: float = struct.unpack_from("<f", stream.finish.embedding)[0]
    return score


class RerankEvents(PooledEvents):
    """Jina's and Cohere's results, best first; streamed, the ranking is at the end."""

    def closing(self) -> list[bytes]:
        return [self.whole(())]

    def _list(self, streams: Sequence[TextStream]) -> Ranking:
        """The ranked list: of equal scores the text that came first goes first."""
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
