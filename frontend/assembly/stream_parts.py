"""What a frontend has of one set of streams, below any request."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import msgspec

from frontend.assembly.background import Background
from frontend.assembly.older_parts import OlderParts
from frontend.assembly.process_parts import ProcessParts
from frontend.config import ROLE
from frontend.inference.admission.drain_rate import QueueWatch
from frontend.inference.resuming.stream_finder import StreamFinder
from frontend.limits.stream_limits import StreamLimits, limited_streams
from frontend.models.model_directory import ModelDirectory
from frontend.routes.model_object import ModelListing
from frontend.streams.detok_client import DetokClient
from frontend.streams.replayer import LostRequests, Replayer
from frontend.streams.reply_router import ReplyRouter
from frontend.surfaces.forks.fork_source import ForkSources
from frontend.surfaces.responses.conversation_store import ConversationStore
from frontend.surfaces.responses.store import ResponseStore
from frontend.tenants.cache_scope import CacheScope
from frontend.tenants.exchange import TenantExchange
from shared.catalog.model_catalog import ModelCatalog
from shared.cluster import Cluster
from shared.liveness.heartbeat import Heartbeat
from shared.protocol.role_cards import RoleCard
from shared.storage.stream_room import StreamRoom

_LOOK_S = 1.0  # at the streams that a request writes to


@dataclass(frozen=True, slots=True)
class StreamParts:
    """Readers of what others write there, and what this frontend publishes of itself."""

    cluster: Cluster
    catalog: ModelCatalog
    models: ModelDirectory
    router: ReplyRouter
    replayer: Replayer
    finder: StreamFinder
    fork_sources: ForkSources
    responses: ResponseStore
    conversations: ConversationStore
    queue_watch: QueueWatch
    room: StreamRoom
    limits: StreamLimits
    cache_scope: CacheScope
    exchange: TenantExchange
    heartbeat: Heartbeat

    @classmethod
    def of(cls, process: ProcessParts, cluster: Cluster, older: OlderParts) -> Self:
        """Raises ConfigError when the streams do not take what is configured."""
        config, subjects = process.config, cluster.subjects
        metrics = process.metrics.streams
        catalog = ModelCatalog(cluster, older.catalog)
        router = ReplyRouter(
            cluster.nc,
            subjects.reply(process.frontend_id),
            process.readers,
            process.ledger,
            cluster.malformed,
            metrics,
        )
        detok = DetokClient(cluster.nc, subjects, router.subject)
        replayer = Replayer(router, detok, LostRequests(cluster), metrics)
        cluster.reconnects.follow(replayer.on_reconnect)
        max_bytes = config.max_response_bytes
        responses = ResponseStore(cluster, detok, max_bytes, older=older.responses)
        room = StreamRoom(cluster.js, limited_streams(subjects), _LOOK_S)
        models = ModelDirectory(catalog, use_model_defaults=config.generation_config == "auto")
        return cls(
            cluster=cluster,
            catalog=catalog,
            models=models,
            router=router,
            replayer=replayer,
            finder=StreamFinder(cluster, detok),
            fork_sources=ForkSources(cluster, catalog, detok, responses, older=older.fork_sources),
            responses=responses,
            conversations=ConversationStore(
                cluster, responses, max_bytes, process.frontend_id, older=older.conversations
            ),
            queue_watch=QueueWatch(cluster),
            room=room,
            limits=StreamLimits(room, subjects),
            cache_scope=CacheScope(
                cluster.bucket(subjects.secrets_bucket), config.shared_prefix_models
            ),
            exchange=TenantExchange(cluster, process.frontend_id, process.ledger, process.keys),
            heartbeat=_heartbeat(cluster, process, models),
        )

    @property
    def background(self) -> Sequence[Background]:
        return (
            self.models,
            self.replayer,
            self.queue_watch,
            self.room,
            self.heartbeat,
            self.exchange,
            self.cache_scope,
        )


def _heartbeat(cluster: Cluster, process: ProcessParts, models: ModelDirectory) -> Heartbeat:
    listing = ModelListing(models, process.styles)
    card = RoleCard(
        id=process.frontend_id,
        role=ROLE,
        level=cluster.level.known,
        host=socket.gethostname(),
        pid=os.getpid(),
        started_at=time.time(),
    )
    roles = cluster.bucket(cluster.subjects.roles_bucket)
    return Heartbeat(
        roles,
        process.frontend_id,
        lambda: msgspec.structs.replace(card, parsers=listing.parsers()),
    )
