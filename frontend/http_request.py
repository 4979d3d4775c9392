"""What HTTP requests carry besides their path: a bounded body, and headers that say who asks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.requests import ClientDisconnect, Request

from frontend.auth import ApiKeys
from frontend.client_request_id import client_request_id
from frontend.config import FrontendConfig
from frontend.idempotency.key import checked_key
from frontend.job import Caller
from frontend.requests.cache_fields import checked_session
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


class CallerReader:
    """Reads the caller from headers; HTTP and NATS name them alike."""

    def __init__(self, config: FrontendConfig, keys: ApiKeys) -> None:
        self._config = config
        self._keys = keys

    def caller(self, headers: Mapping[str, str], transport: str) -> Caller:
        """`headers` with lower-case names. Raises AuthenticationFailed or InvalidRequest."""
        owner, tenant = self._keys.identify(_authorization(headers))
        config = self._config
        asked_s = deadline_s = _seconds(headers, "x-request-timeout")
        if deadline_s is None:
            deadline_s = _lenient_seconds(headers, "x-stainless-read-timeout")
        if deadline_s is None:
            deadline_s = config.default_deadline_s
        grace_s = _seconds(headers, "x-resume-grace")
        return Caller(
            owner=owner,
            tenant=tenant,
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
            job_class=_job_class(headers),
            client_id=client_request_id(headers),
            idempotency_key=checked_key(headers.get("idempotency-key")),
            session=checked_session("x-session-id", headers.get("x-session-id")),
        )


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
    headers = request.headers
    encoding = headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise UnsupportedEncoding(
            f"header content-encoding is {encoding[:40]!r}: bodies are taken uncompressed",
            param="content-encoding",
        )
    length = headers.get("content-length", "")
    if length.isdigit() and int(length) > max_bytes:
        raise _too_large(max_bytes)
    parts: list[bytes] = []
    num_bytes = 0
    try:
        async with asyncio.timeout(_BODY_TIMEOUT_S) as timeout:
            async for part in request.stream():
                num_bytes += len(part)
                if num_bytes > max_bytes:
                    raise _too_large(max_bytes)
                parts.append(part)
    except ClientDisconnect as exc:
        raise RequestCancelled("The client is gone.") from exc
    except TimeoutError as exc:
        if not timeout.expired():
            raise
        raise RequestTimeout(
            f"Of the body, {num_bytes} bytes came in {_BODY_TIMEOUT_S:g} s, and not its end."
        ) from exc
    return b"".join(parts)


def _too_large(max_bytes: int) -> RequestTooLarge:
    return RequestTooLarge(f"The body is larger than {max_bytes} bytes.")
