"""Which tokens of a row may be chosen: min_p, top_k and top_p as one threshold on its logits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

NUM_CANDIDATES = 1024  # sorted first; top_p seldom needs more


def kept_threshold(
    logits: torch.Tensor,
    top_k: npt.NDArray[np.int64],
    top_p: npt.NDArray[np.float32],
    min_p: npt.NDArray[np.float32],
) -> torch.Tensor:
    """The least logit that is kept, [num_rows] float32; the largest of a row always is.

    `logits` [num_rows, vocab_size] float32, already divided by the temperature. The three apply in
    this order; top_p counts what the other two have left. Ties at the threshold are all kept, so
    that the kept set does not depend on how a sort breaks them.
    """
    threshold = torch.full((len(logits),), torch.finfo(torch.float32).min)
    largest = logits.amax(dim=-1)
    if min_p.any():
        # p >= min_p * p_max  <=>  logit >= logit_max + log(min_p)
        threshold = torch.maximum(threshold, largest + torch.from_numpy(min_p).log())
    if top_k.any():
        threshold = torch.maximum(threshold, _top_k_threshold(logits, top_k))
    if (top_p < 1).any():
        rows = torch.from_numpy(np.flatnonzero(top_p < 1))
        top_p_of_rows = torch.from_numpy(top_p)[rows]
        threshold[rows] = _top_p_threshold(logits[rows], top_p_of_rows, threshold[rows])
    return torch.minimum(threshold, largest)


def _top_k_threshold(logits: torch.Tensor, top_k: npt.NDArray[np.int64]) -> torch.Tensor:
    vocab_size = logits.shape[-1]
    k = torch.from_numpy(np.minimum(top_k, vocab_size))
    top = logits.topk(int(k.max()), dim=-1).values
    kth = top.gather(-1, (k - 1).clamp(min=0)[:, None])[:, 0]
    return torch.where(k > 0, kth, torch.finfo(torch.float32).min)


def _top_p_threshold(
    logits: torch.Tensor, top_p: torch.Tensor, threshold: torch.Tensor
) -> torch.Tensor:
    """The largest threshold, not below the given one, that keeps at least `top_p` of the rest."""
    vocab_size = logits.shape[-1]
    rest = logits.masked_fill(logits < threshold[:, None], -torch.inf)
    least, is_enough = _least_kept(rest, top_p, min(NUM_CANDIDATES, vocab_size))
    flat_rows = torch.nonzero(~is_enough)[:, 0]
    if len(flat_rows):
        least[flat_rows], _ = _least_kept(rest[flat_rows], top_p[flat_rows], vocab_size)
    return torch.maximum(least, threshold)


def _least_kept(
    logits: torch.Tensor, top_p: torch.Tensor, num_sorted: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The last of the largest logits that together have the mass `top_p`, and whether they do.

    [num_rows] each. Rounding may leave the whole vocabulary just below `top_p`: then it is the
    least that was sorted.
    """
    top = logits.topk(num_sorted, dim=-1).values
    mass = (top - logits.logsumexp(dim=-1, keepdim=True)).exp().cumsum(dim=-1)
    has_mass = mass >= top_p[:, None]
    is_enough = has_mass[:, -1].clone()
    has_mass[:, -1] = True
    least = top.gather(-1, has_mass.int().argmax(dim=-1, keepdim=True))[:, 0]
    return least, is_enough
