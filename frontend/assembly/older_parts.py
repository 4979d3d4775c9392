"""What a service has moved away from, and is still read."""

from __future__ import annotations

from dataclasses import dataclass

from frontend.cluster.request_path_service import PathService
from frontend.cluster.usage import UsageBook
from frontend.stored.batches.batch_store import BatchStore
from frontend.stored.erasing.erasing_service import ErasingService
from frontend.stored.files.file_store import FileStore
from frontend.surfaces.forks.fork_source import ForkSources
from frontend.surfaces.responses.conversation_store import ConversationStore
from frontend.surfaces.responses.store import ResponseStore
from shared.catalog.model_catalog import ModelCatalog


@dataclass(frozen=True, slots=True)
class OlderParts:
    """Each is asked for what its newer namesake does not have. There are none but in a move."""

    catalog: ModelCatalog | None = None
    responses: ResponseStore | None = None
    conversations: ConversationStore | None = None
    fork_sources: ForkSources | None = None
    file_store: FileStore | None = None
    batch_store: BatchStore | None = None
    erasing: ErasingService | None = None
    paths: PathService | None = None
    usage: UsageBook | None = None
