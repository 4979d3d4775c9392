"""Answers to one caller over NATS."""

from __future__ import annotations

import contextlib

import nats.errors
from nats.aio.client import Client
from nats.micro.request import ERROR_CODE_HEADER, ERROR_HEADER

from frontend.http.error_response import retry_headers
from frontend.text.event_writer import error_body
from shared.errors import RequestError, RequestTooLarge
from shared.nats_client.message_size import message_bytes

_HEADER_ROOM = 1024


def max_body_bytes(nc: Client) -> int:
    """Of a part of a file, beside its headers."""
    return nc.max_payload - _HEADER_ROOM


class Reply:
    """Messages to the inbox of one caller, in order."""

    def __init__(self, nc: Client, subject: str) -> None:
        self._nc = nc
        self._subject = subject

    @property
    def max_payload(self) -> int:
        """Bytes of one message: another server may take more, or less."""
        return self._nc.max_payload

    def fits(self, data: bytes, headers: dict[str, str]) -> bool:
        """Whether one message has room for it: ids of many choices make long headers."""
        return message_bytes(data, headers) <= self.max_payload

    async def send(self, data: bytes, headers: dict[str, str] | None = None) -> None:
        with contextlib.suppress(nats.errors.Error):  # the caller finds the result by its id
            await self._nc.publish(self._subject, data, headers=headers)

    async def send_error(self, error: RequestError, headers: dict[str, str]) -> None:
        await self.send(error_body(error), {**headers, **error_headers(error)})

    async def send_body(
        self, body: bytes, headers: dict[str, str], remedy: str = "over HTTP"
    ) -> int:
        """One message, or the error that it is too large for one. Returns the status."""
        if not self.fits(body, headers):
            error = RequestTooLarge(
                f"The answer has {len(body)} bytes, one NATS message takes {self.max_payload} "
                f"with its headers: ask {remedy}.",
            )
            await self.send_error(error, headers)
            return error.status_code
        await self.send(body, headers)
        return 200


def error_headers(error: RequestError) -> dict[str, str]:
    """The error convention of NATS micro services, and what HTTP tells in headers."""
    return {
        ERROR_HEADER: " ".join(error.message.split())[:500],
        ERROR_CODE_HEADER: str(error.status_code),
        **retry_headers(error),
    }
