"""Subjects that a message names, and that we are to publish to: each is of a kind that we know.

Who writes a subject into a message is not who has the right to publish there: without a look at it
the reader's rights would be the writer's.
"""

from __future__ import annotations

import re

from shared.subjects import Subjects

MAX_SUBJECT_LEN = 256
_PART = r"[!-)+\-/-=?-~]+"  # visible ASCII without `*`, `.` and `>`
_PLAIN = re.compile(rf"{_PART}(?:\.{_PART})*")


def is_plain_subject(subject: str) -> bool:
    """One subject, of tokens that all servers and clients take."""
    return len(subject) <= MAX_SUBJECT_LEN and _PLAIN.fullmatch(subject) is not None


def is_flow_control(subject: str, stream: str) -> bool:
    """Where the server wants to hear how far a reader of this stream is; with a domain and an
    account's hash before the stream, or without.
    """
    if not is_plain_subject(subject):
        return False
    tokens = subject.split(".")
    return tokens[:2] == ["$JS", "FC"] and (
        (len(tokens) > 3 and tokens[2] == stream) or (len(tokens) > 5 and tokens[4] == stream)
    )


class NamedSubjects:
    """What other roles may name."""

    def __init__(self, subjects: Subjects) -> None:
        prefix = re.escape(subjects.prefix)
        stream = re.escape(subjects.requests_stream)
        self._inbox = re.compile(rf"_INBOX_{prefix}_[a-z]+(?:\.{_PART})+")
        self._text = re.compile(rf"{prefix}\.out\.{_PART}")
        # With a domain and an account's hash before the stream, a random token at the end.
        self._ack = re.compile(
            rf"\$JS\.ACK\.(?:{_PART}\.{_PART}\.)?{stream}\.{_PART}(?:\.\d+){{5}}(?:\.{_PART})?"
        )

    def is_role_inbox(self, subject: str) -> bool:
        """Where a role hears the answers to its requests."""
        return _matches(self._inbox, subject)

    def is_text_subject(self, subject: str) -> bool:
        """Where a frontend hears text."""
        return _matches(self._text, subject)

    def is_ack_subject(self, subject: str) -> bool:
        """Whether a delivery of a request is confirmed there."""
        return _matches(self._ack, subject)


def _matches(pattern: re.Pattern[str], subject: str) -> bool:
    return len(subject) <= MAX_SUBJECT_LEN and pattern.fullmatch(subject) is not None
