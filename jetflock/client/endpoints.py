"""The endpoints of the frontends' NATS service: one message there, and one back."""

from __future__ import annotations

import json
from typing import Any

from jetflock.client.call import ASK_TIMEOUT_S
from jetflock.client.link import ConnectionChanged, Link, NoFrontend
from jetflock.errors import ClientError

ACCEPT_TIMEOUT_S = 10.0


class Endpoints:
    """Knows the subject of each endpoint, as the caller's rights have it."""

    def __init__(self, link: Link, name: str, caller: str) -> None:
        self.link = link
        self._prefix = f"{name}.{caller}" if caller else name

    def subject(self, endpoint: str) -> str:
        return f"{self._prefix}.{endpoint}"

    async def ask(
        self, endpoint: str, body: dict[str, Any], timeout_s: float = ASK_TIMEOUT_S
    ) -> dict[str, Any]:
        """One message there and one back. Raises ClientError."""
        subject = self.subject(endpoint)
        with self.link.inbox() as inbox:
            try:
                message = await self.link.ask(
                    subject, json.dumps(body).encode(), {}, inbox, timeout_s
                )
            except NoFrontend as exc:
                raise ClientError(f"nobody listens at {subject}") from exc
            except (TimeoutError, ConnectionChanged) as exc:
                raise ClientError(f"no answer from {subject}") from exc
        reply: dict[str, Any] = json.loads(message.data)
        return reply

    async def abort(self, request_id: str) -> int:
        """Returns how many choices were still running. Raises ClientError."""
        answer = await self.ask("abort", {"rid": request_id}, ACCEPT_TIMEOUT_S)
        return int(answer["num_aborted"])
