"""All that a frontend has for one set of streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from frontend.app import App
from frontend.assembly.background import Background
from frontend.assembly.cluster_parts import ClusterParts
from frontend.assembly.inference_parts import InferenceParts
from frontend.assembly.older_parts import OlderParts
from frontend.assembly.process_parts import ProcessParts
from frontend.assembly.route_tables import route_tables
from frontend.assembly.stored_parts import StoredParts
from frontend.assembly.stream_parts import StreamParts
from frontend.inference.inference import Inference
from frontend.nats.endpoints import ConversationEndpoints, Handler, NatsEndpoints
from frontend.routes.browser_guard import BrowserGuard
from frontend.routes.cors import Cors
from frontend.routes.load_routes import LoadRoutes
from frontend.routes.model_object import ModelListing
from frontend.routes.usage_routes import UsageRoutes
from frontend.stored.erasing.erasing_service import check_right_to_erase


@dataclass(frozen=True, slots=True)
class FrontendSide:
    """Floor by floor, and what transports lead to."""

    streams: StreamParts
    inference: InferenceParts
    stored: StoredParts
    cluster: ClusterParts
    app: App
    nats_handlers: Mapping[str, Handler]

    @classmethod
    def of(
        cls,
        process: ProcessParts,
        streams: StreamParts,
        parts: InferenceParts,
        inference: Inference,
        older: OlderParts,
    ) -> Self:
        """`inference` is that of the process, which knows all sides."""
        stored = StoredParts.of(process, streams, inference, older)
        cluster = ClusterParts.of(process, streams, parts, inference, older)
        models, config, hosts = streams.models, process.config, process.config.host_rule()
        app = App(
            route_tables(process, models, inference, parts, stored, cluster),
            inference,
            process.callers,
            process.metrics.requests,
            Cors(config.cors_origins),
            None if hosts is None else BrowserGuard(hosts, config.cors_origins),
        )
        endpoints = NatsEndpoints(
            inference,
            stored.responses,
            stored.batches,
            stored.files,
            ModelListing(models, process.styles),
            parts.tokenizing,
            LoadRoutes(cluster.reader, models),
            stored.erasing,
        )
        conversations = ConversationEndpoints(stored.conversations)
        handlers = {
            **endpoints.handlers(),
            **conversations.handlers(),
            "usage": UsageRoutes(cluster.usage, inference).answer,
        }
        return cls(streams, parts, stored, cluster, app, handlers)

    async def begin(self) -> None:
        """Call it before the first request. Raises ConfigError when it may not do its work."""
        await check_right_to_erase(self.streams.cluster)
        await self.streams.router.start()
        await self.streams.cache_scope.start()

    @property
    def background(self) -> Sequence[Background]:
        """What runs beside the transports."""
        return (
            *self.streams.background,
            *self.inference.background,
            self.stored.batch_keeper,
            self.cluster.queue_metrics,
            self.cluster.usage,
        )

    def as_older(self) -> OlderParts:
        """What the side that the service moves to reads here."""
        return OlderParts(
            catalog=self.streams.catalog,
            responses=self.streams.responses,
            conversations=self.streams.conversations,
            fork_sources=self.streams.fork_sources,
            file_store=self.stored.file_store,
            batch_store=self.stored.batch_store,
            erasing=self.stored.erasing,
            paths=self.cluster.paths,
            usage=self.cluster.usage,
        )

    def forget_older(self) -> None:
        """The streams of the older side are gone."""
        for part in (
            self.streams.catalog,
            self.streams.responses,
            self.streams.conversations,
            self.streams.fork_sources,
            self.stored.file_store,
            self.stored.all_batches,
            self.stored.erasing,
            self.cluster.paths,
            self.cluster.usage,
        ):
            part.forget_older()
