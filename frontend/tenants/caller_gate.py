"""Who calls over NATS, and where they may be answered.

A server does not tell who has published a message. Where it has users or accounts, it sees to it
that each publishes below its own name alone, and hears nothing but its own inbox.
"""

from __future__ import annotations

import re
from typing import Literal

from shared.broker.named_subjects import is_plain_subject
from shared.errors import InvalidRequest
from shared.subjects import Subjects

NatsCallers = Literal["anyone", "users", "accounts"]

CALLER_PATTERN = "^[A-Za-z0-9_-]{1,64}$"  # a name in a subject

_NAME = re.compile(CALLER_PATTERN)
_OTHER_ACCOUNT = "_R_."  # what a server puts in place of the reply of an imported service


class CallerGate:
    """Subjects of the service, and what may stand in a message to it.

    The answers' connection can publish to callers' inboxes alone, whatever is decided here: this
    is the second wall, and the only one where the server has no users.
    """

    def __init__(self, service: str, subjects: Subjects, callers: NatsCallers) -> None:
        self.service = service
        self._callers = callers
        self._ours = (
            "$",
            f"{subjects.prefix}.",
            f"{service}.",
            subjects.inbox_prefix(""),
        )

    def subject(self, endpoint: str, caller: str) -> str:
        """Where this caller asks; `*` for all of them."""
        if self._callers == "anyone":
            return f"{self.service}.{endpoint}"
        return f"{self.service}.{caller}.{endpoint}"

    def check(self, subject: str, reply: str) -> str:
        """The caller's name, "" where the server knows none. Raises InvalidRequest.

        Who is refused cannot be told: whatever it has named may be somebody else's.
        """
        caller = ""
        if self._callers != "anyone":
            caller = subject.split(".", 2)[1]
            if _NAME.fullmatch(caller) is None:
                raise InvalidRequest(f"no name of a caller: {caller[:40]!r}", param="subject")
        if not is_plain_subject(reply) or not self._is_of(caller, reply):
            raise InvalidRequest(f"no reply subject of a caller: {reply[:80]!r}", param="reply")
        return caller

    def _is_of(self, caller: str, reply: str) -> bool:
        match self._callers:
            case "anyone":
                return not reply.startswith(self._ours)
            case "users":
                return reply.startswith(f"_INBOX_{caller}.")
            case "accounts":
                return reply.startswith(_OTHER_ACCOUNT)
