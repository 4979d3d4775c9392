"""A good client: keeps what it has, and goes on at another frontend when one is gone or silent."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import secrets
import time
from collections.abc import Sequence

from bench.chaos.cases import Case
from bench.chaos.http_stream import HttpStream
from bench.chaos.strike import Strike
from bench.chaos.transcript import Transcript
from bench.chaos.violation import Violation, ViolationKind

_GRACE_S = 60
_STREAM_SILENCE_S = 3.0  # pings come every second
_WHOLE_SILENCE_S = 12.0
_RETRY_S = 0.1
_RETRY_REFUSED_S = 0.5
_WHOLE_PATIENCE = 3  # an answer in one piece shows no progress
_SLOW_PAUSE_S = 0.05
_numbers = itertools.count(1)
_CUT = (OSError, EOFError, TimeoutError)  # OSError: refused, reset; EOFError: ended too early


class ClientRun:
    """One request of one client, from the first POST to its end.

    `frontend` is the index of the one that serves it now; `refusals` counts 429 and 503, which
    are answers too: it asks again.
    """

    def __init__(
        self,
        case: Case,
        ports: Sequence[int],
        frontend: int,
        *,
        grace_s: int = _GRACE_S,
        whole_silence_s: float = _WHOLE_SILENCE_S,
        queue_wait_s: float = 0.0,
    ) -> None:
        """`queue_wait_s`: so much longer it waits for the first token."""
        self.number = next(_numbers)
        self.case = case
        self.frontend = frontend
        self.transcript = Transcript(has_logprobs=case.has_logprobs)
        self.started_at = time.monotonic()
        self.ended_at = 0.0  # 0: it runs
        self.num_refusals = 0
        self.cuts: list[tuple[float, str]] = []  # when an attempt failed, and why
        self.strikes: list[Strike] = []
        self.num_resumes = 0
        self._ports = ports
        self._grace_s = grace_s
        self._whole_silence_s = whole_silence_s
        self._queue_wait_s = queue_wait_s
        self._give_up_s = 0.0
        self._limit: asyncio.Timeout
        self._key = secrets.token_hex(16)

    async def run(self, silence_s: float) -> None:
        """Returns when the answer is whole, an error, or nothing has come for so long."""
        self._give_up_s = silence_s if self.case.is_streamed else _WHOLE_PATIENCE * silence_s
        try:
            async with asyncio.timeout(self._queue_wait_s + self._give_up_s) as self._limit:
                while not (self.transcript.is_done or self.transcript.error):
                    try:
                        await self._attempt()
                    except _CUT as exc:
                        self.num_resumes += 1
                        self.cuts.append((time.monotonic(), f"frontend {self.frontend}: {exc!r}"))
                        self.frontend = (self.frontend + 1) % len(self._ports)
                        await asyncio.sleep(_RETRY_S)
        except TimeoutError:
            pass  # the transcript shows what is missing
        finally:
            self.ended_at = time.monotonic()

    async def fetch(self) -> Transcript:
        """The stored result."""
        stored = Transcript(has_logprobs=self.case.has_logprobs)
        path = f"/v1/streams/{self.transcript.rid}?stream=false"
        async with HttpStream(self._ports[self.frontend], silence_s=_WHOLE_SILENCE_S) as http:
            await http.send("GET", path, {})
            stored.take_whole(json.loads(await http.body()))
        return stored

    async def _attempt(self) -> None:
        silence_s = _STREAM_SILENCE_S if self.case.is_streamed else self._whole_silence_s
        port = self._ports[self.frontend]
        grace = {"X-Resume-Grace": str(self._grace_s)}  # of each connection its own
        async with HttpStream(port, is_slow=self.case.is_slow, silence_s=silence_s) as http:
            resumes = self.case.is_streamed and bool(self.transcript.last_event_id)
            if resumes:
                headers = grace | {"Last-Event-ID": self.transcript.last_event_id}
                await http.send("GET", f"/v1/streams/{self.transcript.rid}", headers)
            else:
                headers = grace | {"Idempotency-Key": self._key}
                await http.send("POST", self.case.path, headers, self.case.body)
            await self._read(http)

    async def _read(self, http: HttpStream) -> None:
        transcript = self.transcript
        if http.status in (429, 503):
            self.num_refusals += 1
            await asyncio.sleep(_RETRY_REFUSED_S)
            raise ConnectionError(f"refused with {http.status}")
        if http.status != 200:
            await self._read_error(http)
            return
        transcript.is_accepted = True
        transcript.rid = transcript.rid or http.headers["x-request-id"]
        if not self.case.is_streamed:
            transcript.take_whole(json.loads(await http.body()))
            return
        pause_s = _SLOW_PAUSE_S if self.case.is_slow else 0.0
        async with contextlib.aclosing(http.events(pause_s)) as events:
            async for event_id, data in events:
                if data == "[DONE]":
                    transcript.is_done = True
                    return
                transcript.take(event_id, json.loads(data))
                if transcript.num_tokens:
                    self._limit.reschedule(asyncio.get_running_loop().time() + self._give_up_s)
        if transcript.error is None:
            raise EOFError("the stream ended without its end")

    async def _read_error(self, http: HttpStream) -> None:
        answer = json.loads(await http.body())
        if http.status == 409:
            violation = Violation(ViolationKind.WRONG, str(answer))
            self.transcript.violations.append(violation)
        self.transcript.error = {"status": http.status, **answer.get("error", {})}
