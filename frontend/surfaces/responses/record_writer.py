"""Writes the records of responses and conversations, as long as their store has room."""

from __future__ import annotations

import nats.errors

from shared.cluster import Cluster
from shared.errors import (
    BrokerError,
    BrokerUnavailable,
    CasConflict,
    ConfigError,
    LimitReached,
    ProtocolError,
    RequestTooLarge,
    ServiceUnavailable,
)
from shared.protocol.codec import check_readable

_MAX_USAGE = 0.9  # beyond it nothing is kept: results of requests that run have room
_ATTEMPTS = 3
_RETRY_AFTER_S = 60
_HEADER_ROOM = 1024


class RecordWriter:
    """Each record is one message; only the first behind a sequence is stored."""

    def __init__(self, cluster: Cluster, max_record_bytes: int) -> None:
        """Raises ConfigError where a record of so many bytes would be too large for a message."""
        max_payload = cluster.nc.max_payload
        if max_record_bytes > max_payload - _HEADER_ROOM:
            raise ConfigError(
                f"max_response_bytes is {max_record_bytes}, must be at most "
                f"{max_payload - _HEADER_ROOM}: NATS has max_payload {max_payload}"
            )
        self._cluster = cluster
        self._max_record_bytes = max_record_bytes

    async def put(self, subject: str, payload: bytes, *, expected_last: int, param: str) -> int:
        """The sequence of the message. `param`: what made it as large as it is.

        Raises CasConflict, also where an earlier attempt has stored it, RequestTooLarge or
        ServiceUnavailable.
        """
        if len(payload) > self._max_record_bytes:
            raise _too_large(len(payload), self._max_record_bytes, param)
        try:
            check_readable(payload)
        except ProtocolError as exc:
            raise RequestTooLarge(
                f"What is kept has too many lists, objects or fields of one object: {exc}.",
                param=param,
            ) from exc
        for _ in range(_ATTEMPTS):
            try:
                await self._check_room(len(payload))
                js = self._cluster.js
                ack = await js.publish(subject, payload, expected_last=expected_last)
            except CasConflict:
                raise
            except BrokerUnavailable:
                continue
            except nats.errors.MaxPayloadError as exc:  # of another server than at the start
                raise _too_large(len(payload), self._cluster.nc.max_payload, param) from exc
            except LimitReached as exc:  # many came at once
                raise _full(str(exc)) from exc
            except BrokerError as exc:
                raise ServiceUnavailable(f"The record cannot be kept: {exc}") from exc
            else:
                return ack.seq
        raise ServiceUnavailable("The store of responses did not answer.")

    async def _check_room(self, num_bytes: int) -> None:
        info = await self._cluster.js.api(f"STREAM.INFO.{self._cluster.subjects.responses_stream}")
        max_bytes = info["config"]["max_bytes"]
        if max_bytes > 0 and info["state"]["bytes"] + num_bytes > _MAX_USAGE * max_bytes:
            raise _full(f"{info['state']['bytes'] / max_bytes:.0%} of {max_bytes} bytes are used")


def _too_large(num_bytes: int, most: int, param: str) -> RequestTooLarge:
    remedy = "delete items of it" if param == "conversation" else "send 'store': false"
    what = "request" if param == "store" else "conversation"
    return RequestTooLarge(
        f"The {what} has {num_bytes} bytes, what is kept has at most {most}: {remedy}.",
        param=param,
    )


def _full(why: str) -> ServiceUnavailable:
    return ServiceUnavailable(
        f"The store of responses is full (--response-store-bytes; {why}): try again later, delete "
        "responses and conversations, or send 'store': false.",
        _RETRY_AFTER_S,
    )
