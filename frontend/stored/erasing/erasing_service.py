"""Tenants who erase requests of theirs, whatever transport asks, and the right to erase."""

from __future__ import annotations

from typing import Literal

from frontend.inference.inference import Inference
from frontend.jobs.job import Caller
from frontend.stored.erasing.request_eraser import RequestEraser
from frontend.text.wire_struct import Count, WireStruct
from shared.broker.settling import once_settled
from shared.cluster import Cluster
from shared.errors import (
    BrokerError,
    BrokerUnavailable,
    ConfigError,
    NotFound,
    ProtocolError,
    ServiceUnavailable,
)
from shared.nats_client.role_client import RoleClient
from shared.telemetry.log import get_logger

_NOBODY = "none"  # no request has such an id

log = get_logger(__name__)


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
            log.warning("request_not_erased", request=group_id, error=repr(exc))
            raise ServiceUnavailable(
                "The request could not be erased as a whole now: ask again."
            ) from exc
        return Erased(id=group_id, deleted=True, gone_by=erasure.gone_by)


async def check_right_to_erase(cluster: Cluster) -> None:
    """Whether the frontend may erase, by a purge of nothing. Raises ConfigError."""
    try:
        await once_settled(lambda: _purge(cluster), cluster.config.nats_connect_timeout_s)
    except BrokerError as exc:
        raise ConfigError(f"JetStream at {cluster.config.nats_url} purges nothing: {exc}") from exc


async def _purge(cluster: Cluster) -> None:
    js, subjects = cluster.js, cluster.subjects
    try:
        await js.purge(subjects.responses_stream, subjects.response(_NOBODY))
    except BrokerUnavailable as exc:
        nc = js.erasing_nc
        if isinstance(nc, RoleClient) and subjects.responses_stream.lower() in nc.last_refusal:
            given = "the user of --nats-user" if nc is js.nc else "the user of --nats-eraser-user"
            raise ConfigError(
                f"{given} may not delete what frontends delete: NATS says {nc.last_refusal!r}; "
                "`jetflock nats-users` makes a user for it, which frontends are told by "
                "--nats-eraser-user (or nkey, or credentials)"
            ) from exc
        raise
