"""Records of a service as a whole: each a key of the bucket `meta`, read as its leader has it."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from shared.broker.kv_bucket import KvBucket
from shared.errors import BrokerError, IncarnationMismatch, ProtocolError
from shared.protocol.codec import decode
from shared.storage.streams import ERR_STREAM_NOT_FOUND

Record = TypeVar("Record", bound=msgspec.Struct)


async def read_record(
    meta: KvBucket, key: str, record_type: type[Record], what: str
) -> tuple[Record | None, int]:
    """The record, and the revision under which it was written; 0: nobody has written one, perhaps
    for want of a bucket.

    Raises BrokerError, or IncarnationMismatch that says of `what` that it is no record.
    """
    try:
        entry = await meta.get(key)
    except BrokerError as exc:
        if exc.err_code != ERR_STREAM_NOT_FOUND:
            raise
        entry = None
    if entry is None:
        return None, 0
    try:
        return decode(record_type, entry.value), entry.revision
    except ProtocolError as exc:
        raise IncarnationMismatch(f"{what} cannot be read: {exc}") from exc
