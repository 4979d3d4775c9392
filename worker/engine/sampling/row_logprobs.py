"""Logprobs of rows of logits: of one token each, and of the likeliest ones."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

FloatRow = npt.NDArray[np.float32]  # [vocab_size]


class Alternatives(NamedTuple):
    """What is told beside a token."""

    num_top: int  # of the likeliest
    token_ids: tuple[int, ...] = ()  # then these

    @property
    def num(self) -> int:
        return self.num_top + len(self.token_ids)


def row_logprobs(logits: FloatRow, token_id: int, asked: Alternatives) -> bytes:
    """A record of `shared.protocol.logprobs`. Of equal logits the lower id comes first.

    Row by row: how a sum is rounded must not depend on the rows beside it.
    """
    own = logits[token_id]
    normalizer = log_sum_exp(logits)
    rank = 1 + int(np.count_nonzero(logits > own))
    ids = largest_ids(logits, asked.num_top)
    if asked.token_ids:
        ids = np.concatenate([ids, np.array(asked.token_ids, np.int64)])
    logprobs = np.concatenate([[own], logits[ids]]) - normalizer
    return pack_record(token_id, rank, ids, logprobs)


def pack_record(
    token_id: int,
    rank: int,
    ids: npt.NDArray[np.int64],
    logprobs: npt.NDArray[np.floating[Any]],  # of the token itself, then of the others
) -> bytes:
    """As `shared.protocol.logprobs` reads it."""
    head = np.array([token_id, rank], "<u4").tobytes()
    packed = logprobs.astype("<f4").tobytes()
    return head + packed[:4] + ids.astype("<u4").tobytes() + packed[4:]


def first_prompt_record(token_id: int, num_alternatives: int) -> bytes:
    """The record of a token that nothing precedes: it has no rank and no logprob."""
    return np.array([token_id], "<u4").tobytes() + bytes(8 + 8 * num_alternatives)


def log_sum_exp(logits: FloatRow) -> float:
    """What turns a logit into a logprob when it is subtracted."""
    largest = logits.max()
    return float(largest) + float(np.log(np.exp(logits - largest).sum(dtype=np.float64)))


def largest_ids(logits: FloatRow, num_ids: int) -> npt.NDArray[np.int64]:
    """Falling by logit, then rising by id."""
    if num_ids == 0:
        return np.empty(0, np.int64)
    kth = len(logits) - min(num_ids, len(logits))
    ids = np.flatnonzero(logits >= np.partition(logits, kth)[kth])
    return ids[np.argsort(-logits[ids], kind="stable")][:num_ids]
