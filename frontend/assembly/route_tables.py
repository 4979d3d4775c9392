"""All routes of the HTTP surface, a line for each table."""

from __future__ import annotations

from collections.abc import Sequence

from frontend.assembly.cluster_parts import ClusterParts
from frontend.assembly.inference_parts import InferenceParts
from frontend.assembly.process_parts import ProcessParts
from frontend.assembly.stored_parts import StoredParts
from frontend.http.http_request import HttpBodies
from frontend.inference.inference import Inference
from frontend.models.model_directory import ModelDirectory
from frontend.openapi.document_routes import DocumentRoutes
from frontend.page.page_document import PageDocument
from frontend.page.page_routes import PageRoutes
from frontend.routes.api_route import RouteTable
from frontend.routes.audio_routes import AudioRoutes
from frontend.routes.batch_routes import BatchRoutes
from frontend.routes.cluster_routes import ClusterRoutes
from frontend.routes.conversation_routes import ConversationRoutes
from frontend.routes.file_routes import FileRoutes
from frontend.routes.job_routes import JobRoutes
from frontend.routes.job_starts import JobStarts
from frontend.routes.load_routes import LoadRoutes
from frontend.routes.message_routes import MessageRoutes
from frontend.routes.model_object import ModelListing
from frontend.routes.model_routes import ModelRoutes
from frontend.routes.ollama_routes import OllamaRoutes
from frontend.routes.response_routes import ResponseRoutes
from frontend.routes.status_routes import StatusRoutes
from frontend.routes.stream_routes import StreamRoutes
from frontend.routes.token_routes import TokenRoutes
from frontend.routes.usage_routes import UsageRoutes
from shared.machine.installation import own_version


def route_tables(
    process: ProcessParts,
    models: ModelDirectory,
    inference: Inference,
    parts: InferenceParts,
    stored: StoredParts,
    cluster: ClusterParts,
) -> Sequence[RouteTable]:
    """The tables of one set of streams."""
    config, listing = process.config, ModelListing(models, process.styles)
    ping_s, bodies = config.ping_interval_s, HttpBodies(process.intake, config.max_body_bytes)
    version = own_version()
    starts = JobStarts(inference, bodies, ping_interval_s=ping_s)
    return [
        PageRoutes(PageDocument(config.page_origins())),
        JobRoutes(starts, models),
        AudioRoutes(starts, process.intake, config.audio_limits()),
        MessageRoutes(starts, inference, parts.surfaces.messages, bodies),
        OllamaRoutes(inference, models, version, bodies, ping_interval_s=ping_s),
        ResponseRoutes(
            stored.responses, inference, parts.surfaces.responses, bodies, ping_interval_s=ping_s
        ),
        ConversationRoutes(stored.conversations, bodies),
        StreamRoutes(inference, stored.erasing, cluster.paths, bodies, ping_interval_s=ping_s),
        ModelRoutes(listing),
        FileRoutes(stored.files),
        BatchRoutes(stored.batches, bodies),
        TokenRoutes(parts.tokenizing, bodies),
        LoadRoutes(cluster.reader, models),
        UsageRoutes(cluster.usage, inference),
        ClusterRoutes(cluster.views, cluster.history, process.callers, over=process.shutdown.asked),
        StatusRoutes(cluster.readiness, process.metrics.registry),
        DocumentRoutes(),
    ]
