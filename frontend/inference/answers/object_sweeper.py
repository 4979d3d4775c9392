"""Deletes objects that nobody needs any more and nobody has deleted: who should have is dead."""

from __future__ import annotations

import asyncio
import random

from shared.admin.dead_requests import DeadRequests
from shared.admin.request_end import last_word
from shared.broker.objects import ObjectEntry, Objects
from shared.catalog.adapter_catalog import adapter_object, is_adapter_object
from shared.catalog.model_catalog import CONFIRMED_S
from shared.checkpoint.tokenizer_bundle import is_bundle_hash
from shared.cluster import Cluster
from shared.errors import BrokerError, ProtocolError
from shared.protocol.codec import decode
from shared.protocol.finish import FinishReason
from shared.protocol.log_records import End
from shared.protocol.model_cards import ModelCard
from shared.protocol.prompt_object import rid_of_dead_prompt, rid_of_prompt
from shared.telemetry.log import get_logger

_INTERVAL_S = 300.0
_MIN_AGE_S = 600.0  # of a prompt: far above what lies between storing it and queueing its request
_NAMELESS_S = 3600.0  # of pieces: far above what storing an object may take

log = get_logger(__name__)


class ObjectSweeper:
    """Looks every few minutes. All frontends do, and do each other no harm.

    Ages are by the clock of the store's leader. What entitles to delete is never an age alone: a
    prompt's request has left the queue, or is ended here before anybody could claim it; files of
    models are named by no card, and were confirmed by nobody since that was seen.
    """

    def __init__(self, cluster: Cluster, frontend_id: str) -> None:
        config = cluster.config
        self._cluster = cluster
        self._frontend_id = frontend_id
        self._objects: Objects = cluster.objects(cluster.subjects.objects_bucket)
        self._dead = DeadRequests(cluster)
        self._retention_s = config.token_retention_s
        # Results and responses that are kept are still read with a tokenizer.
        self._unused_s = max(config.token_retention_s, config.response_ttl_s) + CONFIRMED_S

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(random.uniform(0.5, 1.0) * _INTERVAL_S)
            try:
                await self.sweep()
            except (BrokerError, ProtocolError) as exc:
                log.warning("objects_not_swept", error=str(exc))

    async def sweep(self) -> int:
        """How many were deleted. Raises BrokerError; ProtocolError when what names objects cannot
        be read.
        """
        entries = [entry async for entry in self._objects.all()]
        prompts = [entry for entry in entries if rid_of_prompt(entry.name)]
        dead = [entry for entry in entries if rid_of_dead_prompt(entry.name)]
        files = [entry for entry in entries if _is_of_model(entry.name)]
        num_deleted = sum([await self._sweep_prompt(entry) for entry in prompts])
        num_deleted += await self._sweep_dead(dead)
        num_deleted += await self._sweep_files(files)
        num_deleted += await self._sweep_nameless()
        if num_deleted:
            log.info("objects_swept", num_objects=num_deleted)
        return num_deleted

    async def _sweep_prompt(self, entry: ObjectEntry) -> bool:
        if entry.age_s < _MIN_AGE_S or not await self._is_over(rid_of_prompt(entry.name)):
            return False
        await self._objects.erase(entry.name)
        return True

    async def _is_over(self, rid: str) -> bool:
        end = End(prev=0, reason=FinishReason.CANCEL, by=self._frontend_id)
        return await last_word(self._cluster, rid, end) is not None

    async def _sweep_dead(self, entries: list[ObjectEntry]) -> int:
        old = [entry for entry in entries if entry.age_s >= self._retention_s]
        rids = await self._dead.rids() if old else set()
        gone = [entry for entry in old if rid_of_dead_prompt(entry.name) not in rids]
        for entry in gone:
            await self._objects.erase(entry.name)
        return len(gone)

    async def _sweep_files(self, entries: list[ObjectEntry]) -> int:
        """Those that cards name are confirmed now and then: so it is known since when none does."""
        named = await self._named()
        num_deleted = 0
        for entry in entries:
            if entry.name in named:
                if not entry.is_confirmed or entry.age_s >= CONFIRMED_S:
                    await self._objects.confirm(entry)
            elif not entry.is_confirmed:
                await self._objects.confirm(entry)
            elif entry.age_s >= self._unused_s:
                num_deleted += await self._objects.delete_unchanged(entry)
        return num_deleted

    async def _named(self) -> set[str]:
        """All objects that models need. Raises ProtocolError."""
        bucket = self._cluster.subjects.models_bucket
        named: set[str] = set()
        async for message in self._cluster.js.proven_scan(f"KV_{bucket}", f"$KV.{bucket}.>"):
            card = decode(ModelCard, message.data)
            named.add(card.tokenizer_hash)
            named |= {adapter_object(card.pool, each.revision) for each in card.adapters}
        return named

    async def _sweep_nameless(self) -> int:
        piece_ids = await self._objects.nameless(_NAMELESS_S)
        for piece_id in piece_ids:
            await self._objects.erase_pieces(piece_id)
        return len(piece_ids)


def _is_of_model(name: str) -> bool:
    """Tokenizer files or an adapter; what this build does not know is left alone."""
    return is_bundle_hash(name) or is_adapter_object(name)
