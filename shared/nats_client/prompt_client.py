"""nats-py's client with a shorter way for what is heard often: messages of callbacks that never
wait are handed over where they are read, and an answer needs one timer.

How bytes are read and written, and how a lost connection is made anew, is nats-py's.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

_MARK = "is_prompt"  # of a callback
_MAX_A_TURN = 64  # messages: a long backlog must not keep the loop from other work
_SLOW_S = 0.8
_NO_RESPONDERS = "503"
_ACK_PREFIX = b"$JS.ACK."

F = TypeVar("F", bound=Callable[..., Awaitable[None]])


def prompt(callback: F) -> F:
    """Marks a subscription's callback that never waits. Messages of others pass a queue to a task
    of their subscription.
    """
    setattr(callback, _MARK, True)
    return callback


class PromptClient(Client):
    """`on_slow` hears the subject of each request without an answer so far, or without listener."""

    def __init__(self) -> None:
        super().__init__()
        self.on_slow: Callable[[str], None] = lambda _: None
        self._tokens = itertools.count(1)
        self._num_prompt = 0

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        self._pings_outstanding = 0  # a server that is heard lives: its answer is behind others
        subscription = self._subs.get(sid)
        callback = None if subscription is None else subscription._cb
        if subscription is None or callback is None or not getattr(callback, _MARK, False):
            await super()._process_msg(sid, subject, reply, data, headers)
            return
        assert not subscription._max_msgs, "it hears messages until it ends"
        self.stats["in_msgs"] += 1
        self.stats["in_bytes"] += len(data)
        subscription._received += 1
        is_stored = reply.startswith(_ACK_PREFIX)  # its headers were for the server that stored it
        parsed = await self._process_headers(headers) if headers and not is_stored else None
        message = Msg(self, subject.decode(), reply.decode(), data, parsed, _sid=sid)
        try:
            await callback(message)
        except Exception as exc:  # as nats-py does: whoever hears messages ends no connection
            await self._error_cb(exc)
        self._num_prompt += 1
        if self._num_prompt % _MAX_A_TURN == 0:
            await asyncio.sleep(0)

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        timeout: float = 0.5,
        old_style: bool = False,
        headers: dict[str, Any] | None = None,
    ) -> Msg:
        """Raises TimeoutError and NoRespondersError of nats-py, and what `publish` raises."""
        assert not old_style, "answers come by one subscription"
        if self.is_draining_pubs:
            raise nats.errors.ConnectionDrainingError
        if not self._resp_sub_prefix:
            await self._init_request_sub()
        assert self._resp_sub_prefix is not None
        token = str(next(self._tokens))
        answer = _Answer(timeout, lambda: self.on_slow(subject))
        self._resp_map[token] = answer.future
        try:
            await self.publish(
                subject, payload, self._resp_sub_prefix.decode() + token, headers=headers
            )
            message = await answer.future
        finally:
            answer.end()
            del self._resp_map[token]
        if message.headers and message.headers.get("Status") == _NO_RESPONDERS:
            self.on_slow(subject)
            raise nats.errors.NoRespondersError
        return message

    async def flush(self, timeout: float = 10.0) -> None:
        """All that was sent so far has reached the server. Raises FlushTimeoutError.

        nats-py's own does not tell: its PING overtakes what waits to be written. A subscription
        that drains would be gone here while the server still gives it messages.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._flush_pending(force_flush=True)
        except TimeoutError:
            raise nats.errors.FlushTimeoutError from None
        await super().flush(timeout)  # type: ignore[arg-type]  # it takes fractions

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        """As nats-py does: what is no header is skipped."""
        headers: dict[str, str] = {}
        for line in raw.decode("utf-8", "replace").split("\r\n"):
            name, colon, value = line.partition(":")
            name = name.strip()
            if colon and name.isascii() and len(name.split()) < 2:
                headers[name] = value.strip()
        return headers

    @prompt
    async def _request_sub_callback(self, msg: Msg) -> None:
        future = self._resp_map.get(msg.subject.rpartition(".")[2])
        if future is not None and not future.done():
            future.set_result(msg)


class _Answer:
    """A future that fails after `timeout_s`; on the way there it is said once that it is slow."""

    __slots__ = ("_left_s", "_on_slow", "_timer", "future")

    def __init__(self, timeout_s: float, on_slow: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Msg] = loop.create_future()
        self._on_slow = on_slow
        self._left_s = timeout_s - _SLOW_S
        self._timer = loop.call_later(min(timeout_s, _SLOW_S), self._on_timer)

    def _on_timer(self) -> None:
        if self._left_s > 0:
            left_s, self._left_s = self._left_s, 0.0
            self._timer = asyncio.get_running_loop().call_later(left_s, self._on_timer)
            self._on_slow()
        elif not self.future.done():
            self.future.set_exception(nats.errors.TimeoutError())

    def end(self) -> None:
        self._timer.cancel()
