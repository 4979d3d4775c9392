"""What comes before a decoder's first layer, and behind its last one."""

from __future__ import annotations

import torch
from torch.nn import functional

from worker.engine.layers.linear import Table
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.decoder_weights import DecoderWeights
from worker.engine.models.layer_ops import LayerOps
from worker.engine.models.model import ModelInput
from worker.engine.models.norms import Norm


class DecoderEntry:
    """Makes the stream of tokens."""

    def __init__(
        self, config: DecoderConfig, weights: DecoderWeights, table: Table, norm: Norm
    ) -> None:
        self._table = table
        self._positions: torch.Tensor | None = None  # [num_positions, hidden_size]
        if config.position_offset is not None:
            self._positions = weights.positions()[config.position_offset :]
        self._embedding_scale = config.embedding_factor(table.dtype)
        self._norm = norm if config.norms_embeddings else None

    def embeddings(self, input_ids: torch.Tensor) -> torch.Tensor:
        """[num_tokens] int64 -> [num_tokens, hidden_size]."""
        embeddings = self._table.rows(input_ids)
        return embeddings if self._embedding_scale == 1.0 else embeddings * self._embedding_scale

    def stream(self, batch: ModelInput) -> torch.Tensor:
        """[num_tokens, hidden_size], as the first layer is given them."""
        residual = self.embeddings(batch.input_ids)
        if self._positions is not None:
            residual = residual + functional.embedding(batch.positions, self._positions)
        if self._norm is not None:
            residual = self._norm.of(residual)
        for each in batch.image_rows:
            each.put_into(residual)
        return residual


class DecoderExit:
    """Makes logits of the stream."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: DecoderWeights,
        ops: LayerOps,
        table: Table | None,  # None: it has a head of its own
        norm: Norm,
    ) -> None:
        self._config = config
        self._norm = norm
        head = weights.stored_head()
        if head is None:
            assert table is not None, "it is taken for the head"
            self._lm_head = table.head()
        else:
            self._lm_head = ops.head(head)
        self._head_bias = weights.head_bias()

    def hidden(self, delta: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """[num_tokens, hidden_size], after the last norm."""
        return self._norm.of_sum(delta, residual)[0]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[num_rows, hidden_size] -> [num_rows, num_outputs], in the model's dtype."""
        logits = self._lm_head(hidden)
        if self._head_bias is not None:
            logits = logits + self._head_bias
        if self._config.logits_divisor != 1.0:
            logits = logits / self._config.logits_divisor
        soft_cap = self._config.logits_soft_cap
        return logits if soft_cap is None else soft_cap * torch.tanh(logits / soft_cap)
