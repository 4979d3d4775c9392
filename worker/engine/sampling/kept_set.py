"""Which tokens of a row may be chosen: min_p, top_k and top_p as one threshold on its logits.

Row by row and without torch: how a sum is rounded must not depend on the rows beside it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatRow = npt.NDArray[np.float32]  # [vocab_size], or some of it

_NUM_HEAD = 512  # sorted first: top_p seldom needs more
_NUM_BINS = 2048


def kept_threshold(
    logits: FloatRow, largest: float, top_k: int, top_p: float, min_p: float
) -> float:
    """The least logit that is kept; the largest of the row always is, -inf keeps all.

    `logits` [vocab_size], already divided by the temperature. The three apply in this order: min_p,
    top_k, top_p, which counts what the other two have left. Ties at the threshold are all kept, so
    that the kept set does not depend on how a sort breaks them.
    """
    threshold = -np.inf
    if min_p > 0:
        # p >= min_p * p_max  <=>  logit >= logit_max + log(min_p)
        threshold = largest + np.log(np.float32(min_p))
    if 0 < top_k < len(logits):
        threshold = max(threshold, kth_largest(logits, top_k))
    if top_p < 1:
        rest = logits if threshold == -np.inf else logits[logits >= min(threshold, largest)]
        threshold = max(threshold, _mass_threshold(rest, largest, top_p))
    return float(min(threshold, largest))


def kth_largest(logits: FloatRow, k: int) -> float:
    """Counted with its equals."""
    bound = _lower_bound(logits, k)
    head = logits if bound == -np.inf else logits[logits >= bound]
    return float(np.partition(head, len(head) - k)[len(head) - k])


def _lower_bound(logits: FloatRow, k: int) -> float:
    """Not above the k-th largest, and seldom far below: k groups of the row have such a maximum."""
    group_len = min(64, len(logits) // (2 * k))
    if group_len < 2:
        return -np.inf
    num_groups = len(logits) // group_len
    largest = logits[: group_len * num_groups].reshape(group_len, num_groups).max(axis=0)
    return float(np.partition(largest, num_groups - k)[num_groups - k])


def _mass_threshold(logits: FloatRow, largest: float, top_p: float) -> float:
    """The largest threshold that keeps at least `top_p` of the probability."""
    wanted = top_p * float(np.exp(logits - np.float32(largest)).sum())
    bound = -np.inf if len(logits) <= 4 * _NUM_HEAD else _lower_bound(logits, _NUM_HEAD)
    head = logits[logits >= bound]
    least, is_enough = _least_kept(head, largest, wanted)
    if is_enough or len(head) == len(logits):
        return least
    return _mass_threshold_of_flat(logits[logits > -np.inf], largest, wanted)


def _mass_threshold_of_flat(logits: FloatRow, largest: float, wanted: float) -> float:
    """The same, by a histogram: only the bin in which `wanted` is reached is sorted."""
    weights = np.exp(logits - np.float32(largest))
    below = np.float32(largest) - logits
    bins = (below * (np.float32(_NUM_BINS - 1) / max(below.max(), np.float32(1e-30)))).astype(
        np.int32
    )
    mass = np.bincount(bins, weights, _NUM_BINS).cumsum()
    last_bin = min(int(np.searchsorted(mass, wanted)), int(bins.max()))
    before = float(mass[last_bin - 1]) if last_bin else 0.0
    inside = logits[bins == last_bin]
    if not len(inside):  # rounding alone decides: keep all down to this bin
        inside = logits[bins <= last_bin]
        return float(inside.min())
    return _least_kept(inside, largest, wanted - before)[0]


def _least_kept(logits: FloatRow, largest: float, wanted: float) -> tuple[float, bool]:
    """The last of the largest logits that together have the mass `wanted`, and whether they do.

    Without the mass it is the least of all: rounding may leave them just below it.
    """
    falling = -np.sort(-logits)
    mass = np.exp(falling - np.float32(largest)).cumsum(dtype=np.float64)
    idx = int(np.searchsorted(mass, wanted))
    if idx == len(falling):
        return float(falling[-1]), False
    return float(falling[idx]), True
