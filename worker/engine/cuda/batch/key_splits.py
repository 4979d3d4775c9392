"""Rows that decode cut along their keys: pieces that programs of the decode kernel read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from worker.engine.cuda.batch.attention_tiles import MOST_KEYS
from worker.engine.request.token_ranges import Ints, ranges_before

MAX_SPLITS = 128  # of a row: one alone, of one KV head, has a program on each multiprocessor
MIN_PIECE_KEYS = MOST_KEYS  # of one block


@dataclass(frozen=True, slots=True, eq=False)
class KeySplits:
    """Which pieces there are. Behind the last one the table may have some that are nobody's."""

    pieces: torch.Tensor  # [num_pieces, 3] int32: row, which of its pieces, how many; 0: nobody's
    ends: torch.Tensor  # [num_rows + 1] int32: those of row i are [ends[i], ends[i + 1])


def count_splits(seq_lens: Ints, num_wanted: int) -> Ints:
    """[num_rows]: into how many pieces each is cut, so that about `num_wanted` are equally long.

    At most `num_wanted` more than there are rows. A row without keys has none.
    """
    shares = seq_lens * (num_wanted / max(1, int(seq_lens.sum())))
    most = np.minimum(MAX_SPLITS, -(-seq_lens // MIN_PIECE_KEYS))
    splits: Ints = np.minimum(np.maximum(1, np.rint(shares)), most).astype(np.int64)
    return splits


def list_pieces(splits: Ints, num_pieces: int) -> tuple[npt.NDArray[np.int32], Ints]:
    """`pieces` and `ends` of `KeySplits`, with room for so many."""
    ends = np.concatenate([[0], splits.cumsum()])
    pieces = np.zeros((num_pieces, 3), np.int32)
    taken = pieces[: ends[-1]]
    taken[:, 0] = np.arange(len(splits)).repeat(splits)
    taken[:, 1] = ranges_before(splits, splits, ends[1:])
    taken[:, 2] = splits.repeat(splits)
    return pieces, ends
