"""Batches of an API key: created, listed, looked at and cancelled, whatever transport asks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from frontend.fields.request_body import convert
from frontend.jobs.job import Caller
from frontend.limits.stream_limits import StreamLimits
from frontend.stored.batches.batch_answer import Batch, BatchList, batch_object
from frontend.stored.batches.batch_body import BatchBody
from frontend.stored.batches.batch_record import ENDPOINTS, BatchRecord, BatchStatus, new_batch_id
from frontend.stored.batches.batch_store import BatchStore
from frontend.stored.files.file_record import UPLOADED
from frontend.stored.files.file_store import FileStore
from frontend.stored.list_page import page_of
from shared.errors import BrokerError, CasConflict, InvalidRequest, QueueFull, ServiceUnavailable

_MAX_UNFINISHED = 64  # batches of one API key
_RETRY_AFTER_S = 60
_MAX_METADATA = 16
_MAX_METADATA_KEY = 64
_MAX_METADATA_VALUE = 512


class Batches:
    """Whichever frontend is asked: all of it is in the store."""

    def __init__(
        self,
        store: BatchStore,
        files: FileStore,
        streams: StreamLimits,
        on_new: Callable[[], None],
        max_window_s: float,
    ) -> None:
        self._store = store
        self._files = files
        self._streams = streams
        self._on_new = on_new
        self._max_window_s = max_window_s

    async def create(self, body: Mapping[str, Any], caller: Caller) -> Batch:
        """Raises RequestError."""
        self._streams.check_batch()
        record = await self._checked(convert(body, BatchBody), caller)
        unfinished = [r for r in await self._store.all(caller.owner) if not r.status.is_over]
        if len(unfinished) >= _MAX_UNFINISHED:
            raise QueueFull(
                f"{_MAX_UNFINISHED} batches of your key are not finished: wait, or cancel some.",
                _RETRY_AFTER_S,
            )
        await self._store.create(record)
        self._on_new()
        return batch_object(record)

    async def all(self, query: Mapping[str, str], caller: Caller) -> BatchList:
        """A page of them. Raises RequestError."""
        objects = [batch_object(record) for record in await self._store.all(caller.owner)]
        page, ends = page_of(objects, query, max_limit=100, default=20)
        return BatchList(object="list", data=page, **ends._asdict())

    async def get(self, batch_id: str, caller: Caller) -> Batch:
        """Raises NotFound or ServiceUnavailable."""
        return batch_object((await self._store.get(batch_id, caller.owner)).record)

    async def cancel(self, batch_id: str, caller: Caller) -> Batch:
        """What is in the queue is ended, what has a result keeps it. Raises RequestError."""
        while True:
            stored = await self._store.get(batch_id, caller.owner)
            status = stored.record.status
            if status in (BatchStatus.CANCELLING, BatchStatus.CANCELLED):
                break
            if status not in (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS):
                raise InvalidRequest(
                    f"The batch is {status.value}, and cannot be cancelled any more.",
                    param="id",
                    code="batch_not_cancellable",
                )
            try:
                stored = await self._store.change(
                    stored, status=BatchStatus.CANCELLING, cancelling_at=time.time()
                )
            except CasConflict:
                continue  # its driver tells progress just now
            except BrokerError as exc:
                raise ServiceUnavailable("The batch could not be cancelled now.") from exc
            break
        return batch_object(stored.record)

    async def _checked(self, body: BatchBody, caller: Caller) -> BatchRecord:
        """Raises RequestError."""
        if body.endpoint not in ENDPOINTS:
            raise InvalidRequest(
                f"'endpoint' is {body.endpoint[:80]!r}, must be one of {', '.join(ENDPOINTS)}",
                param="endpoint",
            )
        _check_metadata(body.metadata)
        window_s = body.window_s(self._max_window_s)
        output_ttl_s = None
        if body.output_expires_after is not None:
            output_ttl_s = body.output_expires_after.ttl_s("output_expires_after")
        file = await self._files.get(body.input_file_id, caller.owner)
        if file.purpose != UPLOADED:
            raise InvalidRequest(
                f"'input_file_id' has the purpose {file.purpose!r}, must have {UPLOADED!r}",
                param="input_file_id",
            )
        now = time.time()
        return BatchRecord(
            id=new_batch_id(),
            owner=caller.owner,
            tenant=caller.tenant.id,
            endpoint=body.endpoint,
            input_file_id=file.id,
            completion_window=body.completion_window,
            created=now,
            expires=now + window_s,
            output_ttl_s=output_ttl_s,
            metadata=body.metadata,
        )


def _check_metadata(metadata: dict[str, str] | None) -> None:
    """OpenAI's limits. Raises InvalidRequest."""
    if metadata is None:
        return
    is_small = len(metadata) <= _MAX_METADATA and all(
        len(key) <= _MAX_METADATA_KEY and len(value) <= _MAX_METADATA_VALUE
        for key, value in metadata.items()
    )
    if not is_small:
        raise InvalidRequest(
            f"'metadata' may have {_MAX_METADATA} keys of {_MAX_METADATA_KEY} characters, with "
            f"values of {_MAX_METADATA_VALUE}",
            param="metadata",
        )
