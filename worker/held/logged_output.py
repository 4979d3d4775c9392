"""What earlier epochs have logged of a request: where a run goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

from shared.token_log.fold import NO_EPOCH, RequestFold


class LoggedOutput(NamedTuple):
    """Taken from the log as it is, never computed again."""

    tokens: Sequence[int] = ()
    logprobs: bytes = b""  # a record for each token, if the request asks
    prompt_logprobs: bytes = b""
    progress_epoch: int = NO_EPOCH  # the last one that logged a new token

    @classmethod
    def of(cls, fold: RequestFold) -> Self:
        return cls(fold.tokens, bytes(fold.logprobs), fold.prompt_logprobs, fold.progress_epoch)
