"""Makes one vector of the hidden states of a prompt."""

from __future__ import annotations

import torch

from shared.protocol import PoolingKind, PoolingParams
from worker.engine.req import Req
from worker.engine.sampling.sample_error import SampleError
from worker.engine.schedule_batch import ScheduleBatch

_MIN_NORM = 1e-12


class Pooler:
    """Pools the prompts of a step; of a mean, the sum so far waits in the request."""

    def forward(self, hidden: torch.Tensor, batch: ScheduleBatch) -> dict[int, bytes | SampleError]:
        """`hidden` [num_tokens, hidden_size]. By run id, of prompts that are whole behind this
        step: little-endian float32.
        """
        embeddings: dict[int, bytes | SampleError] = {}
        end = batch.num_plain
        for entry in batch.others:
            start, end = end, end + entry.num_tokens
            req, pooling = entry.req, entry.req.pooling
            if pooling is None:
                continue
            if pooling.kind is PoolingKind.MEAN:
                _add_to_sum(req, hidden[start:end], is_first=entry.start == 0)
            if entry.gives_embedding:
                embeddings[req.run_id] = _embedding(_pooled(req, hidden[end - 1]), pooling)
        return embeddings


def _add_to_sum(req: Req, rows: torch.Tensor, *, is_first: bool) -> None:
    """A request that was retracted begins anew."""
    rows_sum = rows.sum(dim=0, dtype=torch.float32).numpy()
    if is_first:
        req.hidden_sum = rows_sum
    else:
        assert req.hidden_sum is not None, "a mean is computed from its first token on"
        req.hidden_sum = req.hidden_sum + rows_sum


def _pooled(req: Req, last: torch.Tensor) -> torch.Tensor:
    """[hidden_size] float32."""
    if req.hidden_sum is None:
        return last.float()
    return torch.from_numpy(req.hidden_sum) / req.num_tokens


def _embedding(vector: torch.Tensor, pooling: PoolingParams) -> bytes | SampleError:
    vector = vector[: pooling.dimensions]
    if pooling.normalize:
        vector = vector / vector.norm().clamp_min(_MIN_NORM)
    if not vector.isfinite().all():
        return SampleError.NOT_A_NUMBER
    return vector.numpy().astype("<f4").tobytes()
