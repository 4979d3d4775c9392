"""Who reads text in the process that makes it: they are told by a call, not by a message."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shared.protocol.text import TextChunk
from shared.telemetry.log import get_logger

ReceiveText = Callable[[Sequence[TextChunk]], None]

log = get_logger(__name__)


class TextReaders:
    """Who takes text, by reply subject; none where frontends and detokenizers are processes of
    their own."""

    def __init__(self) -> None:
        self._by_subject: dict[str, ReceiveText] = {}

    def add(self, subject: str, receive: ReceiveText) -> None:
        self._by_subject[subject] = receive

    def deliver(self, subject: str, chunks: Sequence[TextChunk]) -> bool:
        """Whether somebody here reads this subject. Text that a reader fails at is not lost by it:
        it is in the log, as what a broken connection takes away.
        """
        receive = self._by_subject.get(subject)
        if receive is None:
            return False
        try:
            receive(chunks)
        except Exception:
            log.exception("text_not_received", subject=subject)
        return True
