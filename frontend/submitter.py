"""The accept rule: a request is accepted when the queue's stream has stored it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import nats.errors

from frontend.drain_rate import DrainRate
from frontend.metrics import FrontendMetrics
from frontend.terminator import Terminator
from shared.cluster import Cluster
from shared.codec import encode
from shared.errors import (
    BrokerError,
    BrokerUnavailable,
    LimitReached,
    QueueFull,
    RequestError,
    RequestTooLarge,
    ServiceUnavailable,
)
from shared.log import get_logger
from shared.model_catalog import ModelCatalog
from shared.prompt_object import without_large_parts
from shared.protocol.finish import FinishReason
from shared.protocol.request import GenerateRequest
from shared.subjects import Lane
from shared.tracing import NO_SPAN, Span, SpanKind

_PATIENCE_S = 10.0  # an election takes 4 to 9 s
_RETRY_S = 0.2

log = get_logger(__name__)


class Submitter:
    """Publishes requests and waits until they are stored."""

    def __init__(
        self,
        cluster: Cluster,
        catalog: ModelCatalog,
        terminator: Terminator,
        drain: DrainRate,
        metrics: FrontendMetrics,
    ) -> None:
        self._cluster = cluster
        self._catalog = catalog
        self._terminator = terminator
        self._drain = drain
        self._metrics = metrics

    @property
    def max_payload(self) -> int:
        """Of the server's messages, in bytes."""
        return self._cluster.nc.max_payload

    async def submit(
        self,
        requests: Sequence[GenerateRequest],
        lanes: Sequence[Lane],
        pixels: Sequence[tuple[bytes, ...]],
        span: Span = NO_SPAN,
    ) -> None:
        """Each into its lane. All are accepted, or none: those already accepted are ended again.

        `pixels` are those of each request's images. Raises QueueFull, ServiceUnavailable or
        RequestTooLarge.
        """
        try:
            await self._submit(requests, lanes, pixels, span)
        except RequestError as exc:
            self._metrics.refused.labels(exc.code or "error", lanes[0].job_class).inc()
            raise

    async def _submit(
        self,
        requests: Sequence[GenerateRequest],
        lanes: Sequence[Lane],
        pixels: Sequence[tuple[bytes, ...]],
        span: Span,
    ) -> None:
        if not self._cluster.nc.is_connected:
            raise ServiceUnavailable("The queue cannot be reached now.")
        if len(requests) == 1:
            try:
                await self._submit_one(requests[0], lanes[0], pixels[0], 1, span)
            except RequestError:
                self._give_up_shared(requests)
                raise
            return
        outcomes = await asyncio.gather(
            *(
                self._submit_one(request, lane, each_pixels, len(requests), span)
                for request, lane, each_pixels in zip(requests, lanes, pixels, strict=True)
            ),
            return_exceptions=True,
        )
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if failures and requests[0].reply.is_shared:
            self._give_up_shared(requests)
            raise failures[0]
        if failures:
            self._terminator.end_later(
                [
                    request
                    for request, outcome in zip(requests, outcomes, strict=True)
                    if outcome is None
                ],
                FinishReason.CANCEL,
            )
            raise failures[0]

    def _give_up_shared(self, requests: Sequence[GenerateRequest]) -> None:
        """Whoever has joined them runs them; else their key shall start anew."""
        if requests[0].reply.is_shared:
            self._terminator.end_later(requests, FinishReason.CANCEL)

    async def _submit_one(
        self,
        request: GenerateRequest,
        lane: Lane,
        pixels: tuple[bytes, ...],
        group_size: int,
        span: Span,
    ) -> None:
        request, stored = without_large_parts(request, pixels)
        if stored:
            await self._put_prompt(request.prompt_object, stored)
        try:
            with span.child("send", SpanKind.PRODUCER) as sending:
                await self._publish(request, lane, group_size, sending)
        except RequestError:
            if not request.reply.is_shared:  # else it may be another frontend's request, accepted
                self._terminator.delete_prompt_later(request.rid, request.reply)
            raise

    async def _publish(
        self, request: GenerateRequest, lane: Lane, group_size: int, span: Span
    ) -> None:
        payload = encode(request)
        if span.is_recording:
            subject = self._cluster.subjects.request(request.pool, lane.token)
            span.rename(f"send {subject}")
            span.set(
                {
                    "messaging.system": "nats",
                    "messaging.operation.name": "publish",
                    "messaging.operation.type": "send",
                    "messaging.destination.name": subject,
                    "messaging.message.id": request.rid,
                    "messaging.message.body.size": len(payload),
                }
            )
        try:
            await self._publish_patiently(request, payload, lane)
        except BrokerUnavailable as exc:
            # It may be stored after all: nobody waits for it, so it is ended when NATS answers.
            if not request.reply.is_shared:
                self._terminator.end_later([request], FinishReason.CANCEL)
            raise ServiceUnavailable("The queue did not answer.") from exc
        except nats.errors.MaxPayloadError as exc:
            raise RequestTooLarge("The request is larger than the queue takes.") from exc
        except LimitReached as exc:
            raise QueueFull(
                "The queue is full; try again later.", self._drain.retry_after_s(group_size)
            ) from exc
        except BrokerError as exc:
            log.error("request_refused", error=str(exc), err_code=exc.err_code)
            raise ServiceUnavailable(f"The queue refused the request: {exc}") from exc

    async def _publish_patiently(
        self, request: GenerateRequest, payload: bytes, lane: Lane
    ) -> None:
        """Again with the same message id, of which the stream keeps one; raises BrokerUnavailable.

        Three servers choose a new leader within seconds: their clients need not notice.
        """
        deadline = time.monotonic() + min(_PATIENCE_S, request.deadline_s)
        while True:
            try:
                return await self._publish_once(request, payload, lane)
            except BrokerUnavailable:
                if time.monotonic() > deadline or not self._cluster.nc.is_connected:
                    raise
            await asyncio.sleep(_RETRY_S)

    async def _publish_once(self, request: GenerateRequest, payload: bytes, lane: Lane) -> None:
        subject = self._cluster.subjects.request(request.pool, lane.token)
        await self._cluster.js.publish(subject, payload, msg_id=request.rid)

    async def _put_prompt(self, name: str, stored: bytes) -> None:
        try:
            await self._catalog.put_object(name, stored)
        except (nats.errors.Error, TimeoutError) as exc:
            raise ServiceUnavailable("The prompt could not be stored.") from exc
