"""Tenants who erase requests of theirs, whatever transport asks."""

from __future__ import annotations

from typing import Literal

from frontend.inference.inference import Inference
from frontend.jobs.job import Caller
from frontend.stored.erasing.request_eraser import RequestEraser
from frontend.text.wire_struct import Count, WireStruct
from shared.cluster import Cluster
from shared.errors import BrokerError, NotFound, ProtocolError, ServiceUnavailable


class Erased(WireStruct, frozen=True, kw_only=True):
    """A request of which nothing is left, or nothing after a time."""

    id: str
    deleted: Literal[True]
    gone_by: Count | None  # unix seconds; None: nothing is left


class ErasingService:
    """Counts the call, and asks whose the request is: of another tenant it does not exist."""

    def __init__(
        self,
        cluster: Cluster,
        inference: Inference,
        frontend_id: str,
        older: ErasingService | None = None,
    ) -> None:
        """`older`: of the streams that the service has moved away from."""
        self._older = older
        self._eraser = RequestEraser(cluster, frontend_id)
        self._inference = inference

    async def erase(self, group_id: str, caller: Caller) -> Erased:
        """What is left of it, and until when. Raises RequestError."""
        self._inference.admit_call(caller)
        try:
            return await self._erase(group_id, caller)
        except NotFound:
            if self._older is None:
                raise
        return await self._older._erase(group_id, caller)

    def forget_older(self) -> None:
        """Their streams are gone."""
        self._older = None

    async def _erase(self, group_id: str, caller: Caller) -> Erased:
        try:
            erasure = await self._eraser.erase(group_id, caller.owner)
        except (BrokerError, ProtocolError) as exc:  # also: one that a newer build has queued
            raise ServiceUnavailable(
                "The request could not be erased as a whole now: ask again."
            ) from exc
        return Erased(id=group_id, deleted=True, gone_by=erasure.gone_by)
