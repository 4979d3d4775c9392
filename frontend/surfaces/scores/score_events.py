"""The wire format of /v1/score."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from frontend.surfaces.embeddings.pooled_events import PooledEvents
from frontend.surfaces.scores.score_answer import Score, ScoreList
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
    """Of a pair: the one label, or "yes", which stands before "no"."""
    assert stream.finish is not None
    score: float = struct.unpack_from("<f", stream.finish.embedding)[0]
    return score
