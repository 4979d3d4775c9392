"""Tells requests that NATS has lost from those that wait."""

from __future__ import annotations

from shared.cluster import Cluster
from shared.storage.stream_quorum import has_quorum


class LostRequests:
    """What was accepted is in the queue, in the log, or among the results, whatever dies. After a
    power loss, or on a store that was put back to an older state, it may be in none of them.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def is_missing(self, rid: str) -> bool:
        """Whether a quorum says that none of them has it. Raises BrokerError."""
        subjects = self._cluster.subjects
        for stream, subject in (
            (subjects.requests_stream, subjects.request_by_rid(rid)),
            (subjects.tokens_stream, subjects.ownership(rid)),
            (subjects.results_stream, subjects.done(rid)),
        ):
            if await self._may_have(stream, subject):
                return False
        return True

    async def _may_have(self, stream: str, subject: str) -> bool:
        """Without its payload: that of a queued request is its prompt."""
        info = await self._cluster.js.api(f"STREAM.INFO.{stream}", {"subjects_filter": subject})
        return bool(info["state"].get("subjects")) or not has_quorum(info)
