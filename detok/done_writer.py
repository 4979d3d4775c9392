"""Writes the finished result of a request: once, and until it is acknowledged."""

from __future__ import annotations

import asyncio

import nats.errors

from detok.decode_status import DecodeStatus
from detok.detok_stats import DetokStats
from shared.cluster import Cluster
from shared.codec import encode
from shared.errors import BrokerError, CasConflict
from shared.log import get_logger
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.text import Done
from shared.token_ids import pack_token_ids

_RETRY_S = 0.2
_MAX_RETRY_S = 5.0

log = get_logger(__name__)


class DoneWriter:
    """DONE is a function of the log: whoever wrote it first wrote the same.

    That of a kept response is written behind its record too, and only there: a response that was
    deleted meanwhile does not come back.
    """

    def __init__(self, cluster: Cluster, stats: DetokStats) -> None:
        self._cluster = cluster
        self._stats = stats

    async def write(self, status: DecodeStatus) -> None:
        """Return when the result is stored, by us or by another."""
        subjects, rid = self._cluster.subjects, status.rid
        payload = encode_done(done_of(status), self._cluster.nc.max_payload)
        if status.reply is not None and status.reply.kept_at:
            await self._store(subjects.response(rid), rid, payload, status.reply.kept_at)
        if await self._store(subjects.done(rid), rid, payload, 0):
            self._stats.done_written += 1

    async def _store(self, subject: str, rid: str, payload: bytes, expected_last: int) -> bool:
        """Until it is stored. False: another was faster, or its response was deleted."""
        retry_s = _RETRY_S
        while True:
            try:
                await self._cluster.js.publish(subject, payload, expected_last=expected_last)
            except CasConflict:
                return False
            except (BrokerError, nats.errors.Error, OSError) as exc:
                log.warning("done_not_stored", rid=rid, subject=subject, error=str(exc))
            else:
                return True
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, _MAX_RETRY_S)


def done_of(status: DecodeStatus) -> Done:
    """The result of a finished, decoded request."""
    assert status.fold.finish is not None
    return Done(
        rid=status.rid,
        token_ids=pack_token_ids(status.fold.tokens),
        text=status.text,
        finish=status.fold.finish,
        reply=status.reply,
        logprobs=bytes(status.fold.logprobs),
        prompt_logprobs=status.fold.prompt_logprobs,
    )


def encode_done(done: Done, max_payload: int) -> bytes:
    """Bytes that the broker takes: a result too large goes without its ids, then without text.

    Ids that logprobs belong to do not go alone: without them the result is an error.
    """
    room = max_payload - 1024  # for subject and headers
    payload = encode(done)
    if len(payload) > room and not done.logprobs and not done.prompt_logprobs:
        log.warning("done_without_token_ids", rid=done.rid, num_bytes=len(payload))
        payload = encode(Done(done.rid, b"", done.text, done.finish, done.reply))
    if len(payload) > room:
        message = f"a result of {len(payload)} bytes exceeds the broker's max_payload"
        finish = Finish(FinishReason.ERROR, message=message)
        payload = encode(Done(done.rid, b"", "", finish, done.reply))
    return payload
