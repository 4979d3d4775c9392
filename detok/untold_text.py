"""What requests of a partition have to say, and nobody has heard."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from detok.decode_status import DecodeStatus
from detok.tokenizer_cache import TokenizerCache
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.text import TextChunk


class UntoldText:
    """Each request once, in the order in which they got something to say."""

    def __init__(
        self, tokenizers: TokenizerCache, on_all_told: Callable[[DecodeStatus], None]
    ) -> None:
        """`on_all_told` hears of each request whose end has been said."""
        self._tokenizers = tokenizers
        self._on_all_told = on_all_told
        self._statuses: list[DecodeStatus] = []

    def __len__(self) -> int:
        return len(self._statuses)

    def add(self, status: DecodeStatus) -> None:
        if not status.is_dirty:
            status.is_dirty = True
            self._statuses.append(status)

    def take(self) -> Iterator[tuple[list[str], TextChunk]]:
        """Reply subjects and chunk of each request; who waits for its tokenizer stays."""
        statuses, self._statuses = self._statuses, []
        for status in statuses:
            if not self._has_text(status):
                self._statuses.append(status)
                continue
            status.is_dirty = False
            if status.is_finishing or (status.is_partial and status.fold.finish is not None):
                continue
            chunk = status.next_chunk()
            if chunk is not None:
                yield status.subjects, chunk
            if status.fold.finish is not None:
                status.is_finishing = True
                self._on_all_told(status)

    def _has_text(self, status: DecodeStatus) -> bool:
        """Decode what is new, if the tokenizer is there."""
        if status.bring_up_to_date(self._tokenizers):
            return True
        assert status.claim is not None
        tokenizer_hash = status.claim.tokenizer_hash
        if not self._tokenizers.is_unusable(tokenizer_hash):
            return False
        message = f"tokenizer {tokenizer_hash} cannot be loaded"
        status.fail(Finish(FinishReason.ERROR, message=message))
        return True
