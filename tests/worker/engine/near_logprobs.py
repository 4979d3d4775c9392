"""Logprobs that two computations of one model may tell: equal, but for what rounding allows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from shared.protocol.logprobs import NO_RANK, TokenLogprob


def assert_near(
    ours: Sequence[TokenLogprob], theirs: Sequence[TokenLogprob], tolerance: float
) -> None:
    """Tokens are the same, and logprobs to `tolerance`. `theirs` tell of all tokens of the
    vocabulary: those that are nearer to each other than rounding tells apart may change places.
    """
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert one.token_id == other.token_id
        if other.rank == NO_RANK:
            assert one.rank == NO_RANK
            continue
        assert one.logprob == pytest.approx(other.logprob, abs=tolerance)
        values = [logprob for _, logprob in other.top]
        num_above = sum(value > other.logprob + 2 * tolerance for value in values)
        num_not_below = sum(value >= other.logprob - 2 * tolerance for value in values)
        assert num_above < one.rank <= num_not_below
        _assert_top_is_near(one, other, tolerance)


def _assert_top_is_near(one: TokenLogprob, other: TokenLogprob, tolerance: float) -> None:
    """Each is told with its own logprob, and none that is clearly more likely is left out."""
    known = dict(other.top)
    best = [logprob for _, logprob in other.top]
    assert len({token_id for token_id, _ in one.top}) == len(one.top)
    for (token_id, logprob), expected in zip(one.top, best, strict=False):
        assert logprob == pytest.approx(known[token_id], abs=tolerance)
        assert logprob == pytest.approx(expected, abs=tolerance)
