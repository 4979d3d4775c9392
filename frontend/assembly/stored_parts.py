"""Files, batches and responses, which outlive the connections that they came by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from frontend.assembly.older_parts import OlderParts
from frontend.assembly.process_parts import ProcessParts
from frontend.assembly.stream_parts import StreamParts
from frontend.inference.inference import Inference
from frontend.stored.batches.batch_driver import BatchParts
from frontend.stored.batches.batch_keeper import BatchKeeper
from frontend.stored.batches.batch_results import BatchResults
from frontend.stored.batches.batch_store import BatchStore, MovingBatchStore
from frontend.stored.batches.batches import Batches
from frontend.stored.batches.line_slots import LineSlots
from frontend.stored.conversations import Conversations
from frontend.stored.erasing.erasing_service import ErasingService
from frontend.stored.files.file_contents import FileContents
from frontend.stored.files.file_store import FileStore
from frontend.stored.files.files import Files
from frontend.stored.kept_responses import Responses


@dataclass(frozen=True, slots=True)
class StoredParts:
    """`batch_store` holds what is driven here; `all_batches` is what callers see."""

    file_store: FileStore
    files: Files
    batch_store: BatchStore
    all_batches: MovingBatchStore
    batch_keeper: BatchKeeper
    batches: Batches
    responses: Responses
    conversations: Conversations
    erasing: ErasingService

    @classmethod
    def of(
        cls, process: ProcessParts, streams: StreamParts, inference: Inference, older: OlderParts
    ) -> Self:
        config, cluster = process.config, streams.cluster
        contents = FileContents(cluster)
        file_store = FileStore(cluster, contents, older=older.file_store)
        batch_store = BatchStore(cluster)
        all_batches = MovingBatchStore(cluster, older.batch_store)
        driving = BatchParts(
            inference,
            file_store,
            batch_store,
            BatchResults(cluster, contents),
            config.batch_limits(),
            LineSlots(config.batch_max_in_flight),
            process.metrics.batches,
        )
        keeper = BatchKeeper(
            cluster, driving, process.keys, process.frontend_id, streams.heartbeat.writability
        )
        return cls(
            file_store=file_store,
            files=Files(file_store, streams.limits, config.max_file_bytes),
            batch_store=batch_store,
            all_batches=all_batches,
            batch_keeper=keeper,
            batches=Batches(
                all_batches, file_store, streams.limits, keeper.look_soon, config.files_ttl_s
            ),
            responses=Responses(
                inference, streams.responses, streams.conversations, streams.models
            ),
            conversations=Conversations(inference, streams.conversations),
            erasing=ErasingService(cluster, inference, process.frontend_id, older=older.erasing),
        )
