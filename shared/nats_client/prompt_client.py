"""nats-py's client with another way through the event loop: messages are handed over where their
bytes arrive, and all that one turn of the loop sends goes out at once.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec
import nats.errors
from nats.aio.client import Client, Srv
from nats.aio.msg import Msg
from nats.aio.subscription import (
    DEFAULT_SUB_PENDING_BYTES_LIMIT,
    DEFAULT_SUB_PENDING_MSGS_LIMIT,
    Subscription,
)

from shared.nats_client.wire_parser import WireParser
from shared.nats_client.wire_transport import WireTransport

_MARK = "is_prompt"  # of such a callback
_VERSION = "NATS/1.0"
_BLANK = re.compile(r"[ \t\r\n]")
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_LINE_ENDS = str.maketrans({"\r": " ", "\n": " "})
_NO_RESPONDERS = "503"

OnMsg = Callable[[Msg], Awaitable[None]]
F = TypeVar("F", bound=Callable[..., Awaitable[None]])


def prompt(callback: F) -> F:
    """Marks a subscription's callback that never waits: it runs where its message is read.

    Others have a task, to which their messages go by a queue.
    """
    setattr(callback, _MARK, True)
    return callback


class PromptSubscription(Subscription):
    """One whose callback never waits."""

    def __init__(self, nc: Client, sid: int, subject: str, callback: OnMsg) -> None:
        super().__init__(nc, sid, subject, cb=callback)
        self.callback = callback

    def _start(self, error_cb: object) -> None:
        """It needs no task."""


class PromptClient(Client):
    """Sending does not fail because the connection has just broken: what is to be sent then goes
    out on the next one.

    What has to wait, such as nats-py's own callbacks and subscriptions with a queue, is served in
    order by the task that nats-py starts for reading.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_write_due = False
        self._chores: asyncio.Queue[tuple[Callable[..., Awaitable[None]], tuple[Any, ...]]]
        self._reply_prefix = ""
        self._answers: dict[str, asyncio.Future[Msg]] = {}  # by the last token of their subject

    # Connecting

    async def _connect_to_server(self, s: Srv) -> None:
        s.last_attempt = time.monotonic()
        if isinstance(self._transport, WireTransport):
            self._transport.abort()
        self._transport = transport = WireTransport(self._write_pending)
        await transport.connect(s.uri, 0, self.options["connect_timeout"])

    async def _read_loop(self) -> None:
        """Until the connection has ended, or is given up, which cancels it."""
        transport = self._transport
        assert isinstance(transport, WireTransport), "another kind is never made"
        chores = self._chores = asyncio.Queue()  # those of an earlier connection are void
        parser = WireParser(self._on_message, self._on_line)

        is_broken = False

        def on_bytes(data: bytes) -> None:
            nonlocal is_broken
            if is_broken or self._transport is not transport:
                return  # it was given up
            try:
                parser.feed(data)
            except nats.errors.ProtocolError as exc:
                is_broken = True
                chores.put_nowait((self._process_op_err, (exc,)))

        def on_end(exc: Exception | None) -> None:
            chores.put_nowait((self._on_end, (exc,)))

        transport.listen(on_bytes, on_end)
        while not (self.is_closed or self.is_reconnecting):
            work, args = await chores.get()
            try:
                await work(*args)
            except Exception as exc:  # of one message: those behind it are none the worse
                await self._error_cb(exc)

    async def _on_end(self, error: Exception | None) -> None:
        if error is None:
            error = nats.errors.UnexpectedEOF()
            await self._error_cb(error)
        await self._process_op_err(error)

    # Hearing

    async def subscribe(
        self,
        subject: str,
        queue: str = "",
        cb: OnMsg | None = None,
        future: asyncio.Future[Msg] | None = None,
        max_msgs: int = 0,
        pending_msgs_limit: int = DEFAULT_SUB_PENDING_MSGS_LIMIT,
        pending_bytes_limit: int = DEFAULT_SUB_PENDING_BYTES_LIMIT,
    ) -> Subscription:
        """To a callback marked as `prompt` messages come without a queue: no limit is theirs."""
        if cb is None or queue or not hasattr(cb, _MARK):
            return await super().subscribe(
                subject, queue, cb, future, max_msgs, pending_msgs_limit, pending_bytes_limit
            )
        if not subject or _BLANK.search(subject):
            raise nats.errors.BadSubjectError
        if self.is_closed:
            raise nats.errors.ConnectionClosedError
        self._sid += 1
        subscription = PromptSubscription(self, self._sid, subject, cb)
        self._subs[self._sid] = subscription
        await self._send_subscribe(subscription)
        return subscription

    def _on_message(
        self, sid: int, subject: str, reply: str, payload: bytes, raw_headers: bytes
    ) -> None:
        subscription = self._subs.get(sid)
        if not isinstance(subscription, PromptSubscription):
            args = (sid, subject.encode(), reply.encode(), payload, raw_headers)
            self._chores.put_nowait((self._process_msg, args))
            return
        self.stats["in_msgs"] += 1
        self.stats["in_bytes"] += len(payload)
        subscription._received += 1
        headers = _parsed(raw_headers) if raw_headers else None
        try:
            _run(subscription.callback(Msg(self, subject, reply, payload, headers, _sid=sid)))
        except Exception as exc:  # it is told, and the next message is another
            self._chores.put_nowait((self._error_cb, (exc,)))

    def _on_line(self, line: bytes) -> None:
        if line == b"PING":
            self._pending.append(b"PONG\r\n")
            self._write_soon()
        elif line == b"PONG":
            self._chores.put_nowait((self._process_pong, ()))
        elif line.startswith(b"-ERR"):
            text = line[4:].strip().decode("utf-8", "replace").lower()
            self._chores.put_nowait((self._process_err, (text,)))
        elif line.startswith(b"INFO"):
            self._chores.put_nowait((self._process_info, (msgspec.json.decode(line[4:]),)))
        elif line != b"+OK":
            raise nats.errors.ProtocolError

    async def _process_pong(self) -> None:
        """Also of a ping whose sender has gone."""
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    # Sending

    async def publish(
        self,
        subject: str,
        payload: bytes = b"",
        reply: str = "",
        headers: dict[str, str] | None = None,
    ) -> None:
        """Waits only while far too much has not been sent.

        Raises MaxPayloadError also where it is the headers that are too much: the server would
        close the connection, on which others are served, too.
        """
        if not subject or _BLANK.search(subject) or (reply and _BLANK.search(reply)):
            raise nats.errors.BadSubjectError
        if self.is_closed:
            raise nats.errors.ConnectionClosedError
        if self.is_draining_pubs:
            raise nats.errors.ConnectionDrainingError
        head = b"" if headers is None else _header_block(headers)
        size = len(head) + len(payload)
        if not self.is_connected and size + self._pending_data_size > self._max_pending_size:
            raise nats.errors.OutboundBufferLimitError
        if size > self._max_payload:
            raise nats.errors.MaxPayloadError
        if headers is None:
            command = b"%b%b\r\n" % (f"PUB {subject} {reply} {size}\r\n".encode(), payload)
        else:
            line = f"HPUB {subject} {reply} {len(head)} {size}\r\n".encode()
            command = b"%b%b%b\r\n" % (line, head, payload)
        self.stats["out_msgs"] += 1
        self.stats["out_bytes"] += len(payload)
        self._pending.append(command)
        self._pending_data_size += len(command)
        if self._pending_data_size > self._max_pending_size:
            await self._flush_pending(force_flush=True)
        elif not self._is_write_due:
            self._write_soon()

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        timeout: float = 0.5,
        old_style: bool = False,
        headers: dict[str, str] | None = None,
    ) -> Msg:
        assert not old_style, "one subscription serves all answers"
        if not self._reply_prefix:
            self._reply_prefix = f"{self.new_inbox()}."
            await self.subscribe(f"{self._reply_prefix}*", cb=self._on_answer)
        token = secrets.token_hex(8)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Msg] = loop.create_future()
        self._answers[token] = future
        timer = loop.call_later(timeout, _expire, future)
        try:
            await self.publish(subject, payload, self._reply_prefix + token, headers)
            answer = await future
        finally:
            timer.cancel()
            del self._answers[token]
        if answer.headers is not None and answer.headers.get("Status") == _NO_RESPONDERS:
            raise nats.errors.NoRespondersError
        return answer

    @prompt
    async def _on_answer(self, message: Msg) -> None:
        future = self._answers.get(message.subject[len(self._reply_prefix) :])
        if future is not None and not future.done():
            future.set_result(message)

    async def _flush_pending(self, force_flush: bool = False) -> None:
        self._write_soon()
        if not force_flush or not self.is_connected or self._transport is None:
            return
        try:
            async with asyncio.timeout(self._flush_timeout):
                await self._transport.drain()  # type: ignore[no-untyped-call]
        except TimeoutError:
            await self._error_cb(nats.errors.FlushTimeoutError())
        except OSError as exc:
            await self._process_op_err(exc)

    async def _send_ping(self, future: asyncio.Future[Any] | None = None) -> None:
        """Behind all that was sent before: who waits for the answer knows that it has arrived."""
        self._hand_over()
        await super()._send_ping(future)

    def _write_soon(self) -> None:
        """With all that this turn of the loop sends."""
        if not self._is_write_due:
            self._is_write_due = True
            asyncio.get_running_loop().call_soon(self._write_pending)

    def _write_pending(self) -> None:
        """As far as the connection takes it: the rest goes when it does, or by the next one."""
        self._is_write_due = False
        if isinstance(self._transport, WireTransport) and self._transport.takes_more:
            self._hand_over()

    def _hand_over(self) -> None:
        """To the connection, which keeps what it cannot send yet. Without one it waits."""
        transport = self._transport
        if not self._pending or not self.is_connected or not isinstance(transport, WireTransport):
            return
        if transport.is_open:
            pending, self._pending = self._pending, []
            self._pending_data_size = 0
            transport.writelines(pending)


def _run(call: Awaitable[None]) -> None:
    steps = call.__await__()
    try:
        next(steps)
    except StopIteration:
        return
    raise RuntimeError("a callback that is marked as prompt has waited")


def _expire(future: asyncio.Future[Msg]) -> None:
    if not future.done():
        future.set_exception(nats.errors.TimeoutError())


def _header_block(headers: Mapping[str, str]) -> bytes:
    lines = [_VERSION]
    for key, value in headers.items():
        name = key.strip()  # of nats-py's enums, too, which format as something else
        if not name:
            continue
        if not _HEADER_NAME.fullmatch(name):
            raise nats.errors.BadHeaderError(name)
        lines.append(f"{name}: {value.strip().translate(_LINE_ENDS)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def _parsed(raw: bytes) -> dict[str, str]:
    """A status in the first line comes as headers, as from nats-py."""
    first, *lines = raw.decode("utf-8", "replace").split("\r\n")
    headers: dict[str, str] = {}
    status, _, description = first.removeprefix(_VERSION).strip().partition(" ")
    if status:
        headers["Status"] = status
    if description:
        headers["Description"] = description
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip()] = value.strip()
    return headers
