"""Logprobs of an engine without a model: made up, but a function of the token and its place."""

from __future__ import annotations

from collections.abc import Sequence

from shared.protocol.logprobs import NO_RANK, TokenLogprob, pack_logprobs


def scripted_logprobs(
    token_id: int, position: int, num_top: int | None, named: Sequence[int] = ()
) -> bytes:
    """One record; the likeliest are the ids that follow. b"" when none is asked for."""
    if num_top is None:
        return b""
    logprob = -0.25 - (token_id + position) % 8 / 4
    top = tuple((token_id + idx, logprob - idx) for idx in range(num_top))
    top += tuple((named_id, logprob - abs(named_id - token_id)) for named_id in named)
    return pack_logprobs([TokenLogprob(token_id, 1, logprob, top)])


def scripted_prompt_logprobs(
    token_ids: Sequence[int], num_top: int | None, named: Sequence[int] = ()
) -> bytes:
    """A record for each token; the first one has no logprob."""
    if num_top is None:
        return b""
    first = TokenLogprob(token_ids[0], NO_RANK, 0.0, ((0, 0.0),) * (num_top + len(named)))
    return pack_logprobs([first]) + b"".join(
        scripted_logprobs(token_id, position, num_top, named)
        for position, token_id in enumerate(token_ids[1:], start=1)
    )
