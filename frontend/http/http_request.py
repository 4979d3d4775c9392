"""What HTTP requests carry besides their path: a bounded body, and headers that say who asks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import TypeVar

from starlette.requests import Request
from starlette.types import Scope

from frontend.config import FrontendConfig
from frontend.fields.cache_fields import checked_session
from frontend.fields.unknown_fields import UnknownFields
from frontend.http.connected_client import WHOLE_BODY, ConnectedClient
from frontend.jobs.body_intake import BodyIntake, ReadBody
from frontend.jobs.client_request_id import client_request_id
from frontend.jobs.idempotency_key import checked_key
from frontend.jobs.job import Caller, Presence, Unseen
from frontend.tenants.auth import ApiKeys
from shared.errors import (
    InvalidRequest,
    RequestCancelled,
    RequestTimeout,
    RequestTooLarge,
    UnsupportedEncoding,
)
from shared.protocol.trace_context import TraceContext
from shared.subjects import JOB_CLASSES

_BODY_TIMEOUT_S = 60.0  # 32 MiB at 4.5 Mbit/s
_UNSEEN = Unseen()
_HEADERS = "jetflock.headers"  # of a scope

T = TypeVar("T")


def headers_of(scope: Scope) -> Mapping[str, str]:
    """The headers of a request by their names in lower case, of several with one name the first:
    decoded once, and kept in the scope.
    """
    found: dict[str, str] | None = scope.get(_HEADERS)
    if found is None:
        found = scope[_HEADERS] = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in reversed(scope["headers"])
        }
    return found


class CallerReader:
    """Reads the caller from headers; HTTP and NATS name them alike."""

    def __init__(self, config: FrontendConfig, keys: ApiKeys) -> None:
        self._config = config
        self._keys = keys

    def caller(
        self,
        headers: Mapping[str, str],
        transport: str,
        presence: Presence = _UNSEEN,
        *,
        nats_user: str = "",
    ) -> Caller:
        """`headers` with lower-case names. Raises AuthenticationFailed or InvalidRequest."""
        key = self._keys.key_of(_authorization(headers), nats_user)
        config = self._config
        asked_s = deadline_s = _seconds(headers, "x-request-timeout")
        if deadline_s is None:
            deadline_s = _lenient_seconds(headers, "x-stainless-read-timeout")
        if deadline_s is None:
            deadline_s = config.default_deadline_s
        grace_s = _seconds(headers, "x-resume-grace")
        return Caller(
            tenant=key.tenant,
            key=key.name,
            deadline_s=min(max(deadline_s, 0.001), config.max_deadline_s),
            queue_timeout_s=config.queue_timeout_s,
            detached_deadline_s=(
                config.max_deadline_s
                if asked_s is None
                else min(max(asked_s, 0.001), config.max_deadline_s)
            ),
            grace_s=None if grace_s is None else min(grace_s, config.max_resume_grace_s),
            trace=TraceContext.read(headers.get("traceparent", ""), headers.get("tracestate", "")),
            transport=transport,
            nats_user=nats_user,
            job_class=_job_class(headers),
            client_id=client_request_id(headers),
            idempotency_key=checked_key(headers.get("idempotency-key")),
            session=checked_session("x-session-id", headers.get("x-session-id")),
            presence=presence,
            unknown=UnknownFields(are_refused=config.unknown_fields == "refuse"),
        )


class HttpPresence:
    """The client of an HTTP request."""

    def __init__(self, client: ConnectedClient) -> None:
        self._client = client

    async def during(self, work: Awaitable[T]) -> T:
        """Raises RequestCancelled."""
        working, gone = asyncio.ensure_future(work), asyncio.get_running_loop().create_future()
        self._client.on_gone(gone.cancel)
        try:
            await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise RequestCancelled("The client is gone.")
            return working.result()
        finally:
            self._client.forget(gone.cancel)
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)


def _authorization(headers: Mapping[str, str]) -> str:
    """Anthropic's clients have a header of their own for a key."""
    key = headers.get("x-api-key", "")
    return headers.get("authorization") or (f"Bearer {key}" if key else "")


def _seconds(headers: Mapping[str, str], name: str) -> float | None:
    text = headers.get(name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise InvalidRequest(f"header {name} is {text[:40]!r}, must be seconds", param=name)
    return value


def _job_class(headers: Mapping[str, str]) -> str:
    name = headers.get("x-job-class", JOB_CLASSES[0])
    if name not in JOB_CLASSES:
        raise InvalidRequest(
            f"header x-job-class is {name[:40]!r}, must be one of {', '.join(JOB_CLASSES)}",
            param="x-job-class",
        )
    return name


def _lenient_seconds(headers: Mapping[str, str], name: str) -> float | None:
    """A header that a library sets: what cannot be read counts as absent."""
    try:
        value = _seconds(headers, name)
    except InvalidRequest:
        return None
    return value or None


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Raises RequestTooLarge (before reading, when the client says how long it is),
    UnsupportedEncoding, or RequestTimeout.
    """
    headers = headers_of(request.scope)
    encoding = headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise UnsupportedEncoding(
            f"header content-encoding is {encoding[:40]!r}: bodies are taken uncompressed",
            param="content-encoding",
        )
    length = headers.get("content-length", "")
    if length.isdigit() and int(length) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    if WHOLE_BODY in request.scope:  # there is nothing to wait for
        await _read_to_end(request, max_bytes, body)
        return bytes(body)
    try:
        async with asyncio.timeout(_BODY_TIMEOUT_S) as timeout:
            await _read_to_end(request, max_bytes, body)
    except TimeoutError as exc:
        if not timeout.expired():
            raise
        raise RequestTimeout(
            f"Of the body, {len(body)} bytes came in {_BODY_TIMEOUT_S:g} s, and not its end."
        ) from exc
    return bytes(body)


async def _read_to_end(request: Request, max_bytes: int, body: bytearray) -> None:
    """Raises RequestTooLarge or RequestCancelled."""
    has_more = True
    while has_more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise RequestCancelled("The client is gone.")
        if len(body) + len(message["body"]) > max_bytes:
            raise _too_large(max_bytes)
        body += message["body"]
        has_more = message["more_body"]


def _too_large(max_bytes: int) -> RequestTooLarge:
    return RequestTooLarge(f"The body is larger than {max_bytes} bytes.")


class HttpBodies:
    """JSON objects of up to `max_bytes`."""

    def __init__(self, intake: BodyIntake, max_bytes: int) -> None:
        self._intake = intake
        self._max_bytes = max_bytes

    async def read(
        self, request: Request, caller: Caller, max_bytes: int | None = None
    ) -> ReadBody:
        """The tenant is charged for what is refused within it. Raises RequestError."""
        self._intake.check(caller)
        data = await read_body(request, self._max_bytes if max_bytes is None else max_bytes)
        return await self._intake.read(data, caller)

    async def skip(self, request: Request, caller: Caller) -> None:
        """Take it as it comes, whatever it is. Raises RequestError."""
        self._intake.check(caller)
        await read_body(request, self._max_bytes)
