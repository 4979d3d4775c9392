"""Runs one line of a batch to its end, whatever passes meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from dataclasses import replace

import msgspec

from frontend.inference.inference import Inference
from frontend.jobs.job import Caller
from frontend.stored.batches.batch_input import BatchLine
from frontend.stored.batches.batch_results import LineResult
from frontend.stored.batches.line_slots import LineSlots
from frontend.streams.generation import Interrupt, Interrupted
from frontend.surfaces.answer import Answer
from frontend.text.event_writer import encode_json, error_body
from shared.errors import (
    DeadlineExceeded,
    QueueFull,
    RateLimited,
    RequestCancelled,
    RequestError,
    ServiceUnavailable,
)
from shared.protocol.reply import Surface
from shared.telemetry.log import get_logger

PRIORITY = 100  # of a line that names none: what else waits inside a worker begins before it
_PAUSE_S = 1.0
_MAX_PAUSE_S = 5.0  # of a line that is refused: what is in flight is bounded anyway
_MAX_CANCELS = 3  # after so many, somebody aborts this line and means it

log = get_logger(__name__)


class LineRunner:
    """Lines of one batch. Each has an idempotency key, of a form that no client can send.

    So who drives the batch after us joins what we have queued, or finds its result.
    """

    def __init__(
        self,
        inference: Inference,
        slots: LineSlots,
        surface: Surface,
        caller: Caller,
        batch_id: str,
    ) -> None:
        self._inference = inference
        self._slots = slots
        self._surface = surface
        self._caller = caller
        self._batch_id = batch_id
        self.runs_on = True  # what is under way when a task is cancelled: somebody will join it

    async def run(self, line_idx: int, line: BatchLine) -> LineResult:
        """Again and again, until it has an answer or an error that stays."""
        num_cancels = 0
        while True:
            pause_s = _PAUSE_S
            try:
                async with self._slots.slot(self._batch_id):
                    request_id, body = await self._answer(line_idx, line)
                text = self._line(line_idx, line, 200, request_id, body)
                return LineResult(line_idx, is_error=False, text=text)
            except (QueueFull, RateLimited, ServiceUnavailable) as exc:
                pause_s = min(_MAX_PAUSE_S, float(exc.retry_after_s))
            except (DeadlineExceeded, Interrupted) as exc:
                log.info("batch_line_again", batch=self._batch_id, line=line_idx, why=str(exc))
            except RequestError as exc:
                num_cancels += isinstance(exc, RequestCancelled)
                if not isinstance(exc, RequestCancelled) or num_cancels == _MAX_CANCELS:
                    text = self._line(line_idx, line, exc.status_code, "", error_body(exc))
                    return LineResult(line_idx, is_error=True, text=text)
            await asyncio.sleep(pause_s)

    def unfinished(self, line_idx: int, custom_id: str, code: str, message: str) -> bytes:
        """The line of the error file for one that has no answer."""
        return self._json(line_idx, custom_id, None, {"code": code, "message": message})

    async def _answer(self, line_idx: int, line: BatchLine) -> tuple[str, bytes]:
        """Request id and body. Raises RequestError or Interrupted."""
        answer = await self._started(line_idx, {"priority": PRIORITY, **line.body})
        status = 500
        try:
            body = await answer.feed.whole()
            status = 200
        except RequestError as exc:
            status = exc.status_code
            raise
        except asyncio.CancelledError:
            if self.runs_on:
                answer.generation.cut(Interrupt.SHUTDOWN)
            status = 499
            raise
        finally:
            answer.close(status, "batch")
        return answer.generation.group_id, body

    async def _started(self, line_idx: int, body: dict[str, object]) -> Answer:
        """Not cut in the middle: what is queued is closed as it should be. Raises RequestError."""
        caller = replace(self._caller, idempotency_key=f"batch\n{self._batch_id}\n{line_idx}")
        starting = asyncio.create_task(self._inference.start(self._surface, body, caller))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            with contextlib.suppress(RequestError):
                answer = await starting
                if self.runs_on:
                    answer.generation.cut(Interrupt.SHUTDOWN)
                answer.close(499, "batch")
            raise

    def _line(
        self, line_idx: int, line: BatchLine, status: int, request_id: str, body: bytes
    ) -> bytes:
        response = {"status_code": status, "request_id": request_id, "body": msgspec.Raw(body)}
        return self._json(line_idx, line.custom_id, response, None)

    def _json(self, line_idx: int, custom_id: str, response: object, error: object) -> bytes:
        text = f"{self._batch_id}.{line_idx}".encode()
        digest = hashlib.blake2b(text, digest_size=16, person=b"jetflock-line").hexdigest()
        return encode_json(
            {
                "id": f"batch_req_{digest}",
                "custom_id": custom_id,
                "response": response,
                "error": error,
            }
        )
