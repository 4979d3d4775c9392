"""What requests change of their logits before a token is drawn, wherever the logits are."""

from __future__ import annotations

from collections.abc import Callable

import torch

from worker.engine.sampling.grammar_masks import GrammarMasks
from worker.engine.sampling.sampling_batch import SamplingBatch

Move = Callable[[torch.Tensor], torch.Tensor]  # from the host to where the logits are
ApplyMasks = Callable[[torch.Tensor, GrammarMasks], None]


def change_logits(
    logits: torch.Tensor, batch: SamplingBatch, move: Move, apply_masks: ApplyMasks
) -> None:
    """Biases, masks, penalties, narrowing: in this order.

    `logits` [num_rows, vocab_size] float32.
    """
    if batch.bias is not None:
        places = move(batch.bias.rows) * logits.shape[1] + move(batch.bias.token_ids)
        logits.view(-1).index_add_(0, places, move(batch.bias.values))
    for row, token_ids in batch.allowed:
        ids = move(token_ids)
        allowed = logits[row, ids]
        logits[row] = -torch.inf
        logits[row, ids] = allowed
    if batch.banned is not None:
        rows, token_ids = map(move, batch.banned)
        logits.index_put_((rows, token_ids), logits.new_full((), -torch.inf))
    if batch.grammar_masks is not None:
        apply_masks(logits, batch.grammar_masks)
    if batch.penalties is not None:
        pairs = move(batch.penalties.rows), move(batch.penalties.token_ids)
        repetition, subtracted = batch.penalties.repetition, batch.penalties.subtracted
        values, repetition = logits[pairs], move(repetition)
        values = torch.where(values > 0, values / repetition, values * repetition)
        logits.index_put_(pairs, values - move(subtracted))
    for row, narrowing in batch.narrowings:
        logits[row] = narrowing.narrowed(logits[row])
