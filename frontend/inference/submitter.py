"""The accept rule: a request is accepted when the queue's stream has stored it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import msgspec
import nats.errors

from frontend.inference.admission.drain_rate import DrainRate
from frontend.inference.answers.terminator import Terminator
from frontend.metrics import AcceptanceMetrics
from shared.catalog.model_catalog import ModelCatalog
from shared.cluster import Cluster
from shared.errors import (
    BrokerError,
    BrokerUnavailable,
    LimitReached,
    PerhapsQueued,
    QueueClosed,
    QueueFull,
    RequestError,
    RequestTooLarge,
    ServiceMoved,
    ServiceUnavailable,
)
from shared.protocol.codec import encode
from shared.protocol.finish import FinishReason
from shared.protocol.prompt_object import without_large_parts
from shared.protocol.request import GenerateRequest
from shared.subjects import Lane
from shared.telemetry.log import get_logger
from shared.telemetry.tracing import NO_SPAN, Span, SpanKind

_PATIENCE_S = 10.0  # an election takes 4 to 9 s
_RETRY_S = 0.2
_FULL_RETRY_S = 30

log = get_logger(__name__)


class Submitter:
    """Publishes requests and waits until they are stored."""

    def __init__(
        self,
        cluster: Cluster,
        catalog: ModelCatalog,
        terminator: Terminator,
        drain: DrainRate,
        metrics: AcceptanceMetrics,
    ) -> None:
        self._cluster = cluster
        self._catalog = catalog
        self._terminator = terminator
        self._drain = drain
        self._metrics = metrics

    async def submit(
        self,
        requests: Sequence[GenerateRequest],
        lanes: Sequence[Lane],
        pixels: Sequence[tuple[bytes, ...]],
        span: Span = NO_SPAN,
        *,
        needed_level: int = 1,
    ) -> None:
        """Each into its lane. All are accepted, or none: those already accepted are ended again.

        `pixels` are those of each request's images; `needed_level`: the feature level of what the
        requests use. Raises QueueFull, ServiceUnavailable
        (PerhapsQueued: it may be stored all the same) or RequestTooLarge.
        """
        try:
            self._check_reach(needed_level)
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

    def _check_reach(self, needed: int) -> None:
        """Raises ServiceUnavailable, also where a role may live that knows less than is needed."""
        if not self._cluster.nc.is_connected:
            raise ServiceUnavailable("The queue cannot be reached now.")
        in_force = self._cluster.level.in_force
        if needed > in_force:
            raise ServiceUnavailable(
                f"The request uses fields of feature level {needed}, and the service is at "
                f"{in_force}: a role of an older build lives, or lived within the last half "
                "minute, or an operator holds the level (jetflock admin level shows which)."
            )

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
        except PerhapsQueued:
            raise  # its prompt goes when it has ended
        except RequestError:
            if not request.reply.is_shared:  # else it may be another frontend's request, accepted
                self._terminator.delete_prompt_later(request.rid, request.reply)
            raise

    async def _publish(
        self, request: GenerateRequest, lane: Lane, group_size: int, span: Span
    ) -> None:
        payload = self._encoded(request, may_be_copy=request.reply.is_shared)
        if span.is_recording:
            subject = self._cluster.subjects.lane(request.pool, lane.token)
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
        except asyncio.CancelledError:
            self._end_if_stored(request)
            raise
        except BrokerUnavailable as exc:
            self._end_if_stored(request)
            raise PerhapsQueued("The queue did not answer.") from exc
        except nats.errors.MaxPayloadError as exc:
            raise RequestTooLarge("The request is larger than the queue takes.") from exc
        except LimitReached as exc:
            raise QueueFull(
                "The queue is full (--queue-max-msgs, --queue-max-bytes); try again later.",
                self._drain.retry_after_s(group_size),
            ) from exc
        except QueueClosed as exc:
            self._end_if_stored(request)  # an earlier attempt, whose answer was lost, might be
            raise ServiceMoved from exc
        except BrokerError as exc:
            log.error("request_refused", error=str(exc), err_code=exc.err_code)
            raise ServiceUnavailable(f"The queue refused the request: {exc}") from exc

    def _end_if_stored(self, request: GenerateRequest) -> None:
        """Nobody waits for it, so it is ended when NATS answers."""
        if not request.reply.is_shared:
            self._terminator.end_later([request], FinishReason.CANCEL)

    async def _publish_patiently(
        self, request: GenerateRequest, payload: bytes, lane: Lane
    ) -> None:
        """Again on the same subject, which takes one; raises BrokerUnavailable.

        Three servers choose a new leader within seconds: their clients need not notice.
        """
        deadline = time.monotonic() + min(_PATIENCE_S, request.deadline_s)
        queue, may_be_stored = self._cluster.queue, request.reply.is_shared
        while True:
            try:
                return await queue.put(request, lane.token, payload, may_be_stored=may_be_stored)
            except BrokerUnavailable:
                if time.monotonic() > deadline or not self._cluster.nc.is_connected:
                    raise
            if not may_be_stored:
                may_be_stored, payload = True, self._encoded(request, may_be_copy=True)
            await asyncio.sleep(_RETRY_S)

    def _encoded(self, request: GenerateRequest, *, may_be_copy: bool) -> bytes:
        copy = msgspec.structs.replace(request, may_be_copy=may_be_copy)
        return encode(self._cluster.level.stamp(copy))

    async def _put_prompt(self, name: str, stored: bytes) -> None:
        try:
            await self._catalog.put_object(name, stored)
        except LimitReached as exc:
            raise QueueFull(
                "The store of long prompts and images is full (--objects-max-bytes); try again "
                "later.",
                _FULL_RETRY_S,
            ) from exc
        except BrokerError as exc:
            raise ServiceUnavailable("The prompt could not be stored.") from exc
