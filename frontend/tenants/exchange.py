"""Frontends tell each other what their tenants have, so that nobody has more by using several."""

from __future__ import annotations

import asyncio
import contextlib
import time

import msgspec
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from frontend.tenants.auth import ApiKeys
from frontend.tenants.ledger import TenantLedger
from shared.cluster import Cluster
from shared.errors import ProtocolError
from shared.event_wait import beat_s, wait_event
from shared.nats_client.connection_end import end_subscription
from shared.protocol.codec import decode, encode
from shared.protocol.notices import TenantCost, TenantGossip, TenantUse
from shared.subjects import JOB_CLASSES
from shared.telemetry.log import get_logger

_INTERVAL_S = 1.0
_ALONE_S = 3.0  # less than `_GONE_AFTER_S`
_PAUSE_S = 0.05  # changes that come in quick succession are told together
_GONE_AFTER_S = 4.0  # without news
_MAX_SENT = 5000  # tenants: those with the most requests, in a message of half a MiB

log = get_logger(__name__)


class TenantExchange:
    """Tells every change within 50 ms where there is somebody to hear it, and all every second.

    Messages are whole states: one that is lost is made up for by the next. A frontend that has
    heard of no other says every three seconds that it is there, and everything as soon as it hears
    of one.
    """

    def __init__(
        self, cluster: Cluster, frontend_id: str, ledger: TenantLedger, keys: ApiKeys
    ) -> None:
        self._nc = cluster.nc
        self._malformed = cluster.malformed
        self._subject = cluster.subjects.tenants
        self._costs_subject = cluster.subjects.costs
        self._frontend_id = frontend_id
        self._ledger = ledger
        self._keys = keys
        self._heard_at: dict[str, float] = {}  # by frontend
        self._met = asyncio.Event()  # another one was heard for the first time

    async def run(self) -> None:
        """Until cancelled."""
        subscriptions = [
            await self._nc.subscribe(self._subject, cb=self._on_gossip),
            await self._nc.subscribe(self._costs_subject, cb=self._on_cost),
        ]
        try:
            while True:
                self._ledger.changed.clear()
                self._forget_silent()
                await self._publish()
                await asyncio.sleep(_PAUSE_S)
                if self._heard_at:
                    await wait_event(self._ledger.changed, _INTERVAL_S)
                else:
                    await wait_event(self._met, beat_s(_ALONE_S))
                self._met.clear()
        finally:
            for subscription in subscriptions:
                await end_subscription(subscription)

    @property
    def num_others(self) -> int:
        """Frontends that were heard lately."""
        return len(self._heard_at)

    def gossip(self) -> TenantGossip:
        """What the others should know."""
        uses = self._ledger.rates.uses(time.monotonic())
        here = self._ledger.here
        for tenant in {tenant for tenant, _ in here}:
            counts = tuple(here.get((tenant, job_class), 0) for job_class in JOB_CLASSES)
            use = uses.get(tenant) or TenantUse(tenant)
            uses[tenant] = msgspec.structs.replace(use, num_outstanding=counts)
        told = sorted(uses.values(), key=lambda use: sum(use.num_outstanding), reverse=True)
        return TenantGossip(self._frontend_id, told[:_MAX_SENT])

    async def _publish(self) -> None:
        with contextlib.suppress(NatsError):
            await self._nc.publish(self._subject, encode(self.gossip()))

    async def _on_gossip(self, message: Msg) -> None:
        try:
            gossip = decode(TenantGossip, message.data)
        except ProtocolError as exc:
            self._malformed.note(message.subject, exc)
            log.warning("tenant_news_unreadable", error=str(exc))
            return
        if gossip.frontend == self._frontend_id:
            return
        if gossip.frontend not in self._heard_at:
            self._ledger.changed.set()  # it should hear of us soon
            self._met.set()
        now = self._heard_at[gossip.frontend] = time.monotonic()
        self._ledger.hear(
            gossip.frontend,
            {
                (use.tenant, job_class): count
                for use in gossip.uses
                for job_class, count in zip(JOB_CLASSES, use.num_outstanding, strict=False)
            },
        )
        self._ledger.rates.hear(gossip.frontend, gossip.uses, now)

    async def _on_cost(self, message: Msg) -> None:
        try:
            cost = decode(TenantCost, message.data)
        except ProtocolError as exc:
            self._malformed.note(message.subject, exc)
            log.warning("tenant_cost_unreadable", error=str(exc))
            return
        tenant = self._keys.tenant_of_owner(cost.owner)
        if tenant is not None:
            self._ledger.rates.charge(tenant, cost.num_tokens, time.monotonic())

    def _forget_silent(self) -> None:
        now = time.monotonic()
        for frontend_id, heard_at in list(self._heard_at.items()):
            if now - heard_at > _GONE_AFTER_S:
                del self._heard_at[frontend_id]
                self._ledger.forget(frontend_id, now)
