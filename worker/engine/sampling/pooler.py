"""Makes vectors of a prompt, one or one a token: of its hidden states, or of what the head says."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from shared.protocol.sampling import PoolingKind, PoolingParams
from worker.engine.request.req import Req
from worker.engine.request.schedule_batch import ScheduleBatch, ScheduledReq
from worker.engine.request.step_result import SampleError

_MIN_NORM = 1e-12

Logits = Callable[[torch.Tensor], torch.Tensor]  # [num_rows, hidden_size] -> [.., num_outputs]


class Pooler:
    """Pools the prompts of a step; of a mean, the sum so far waits in the request."""

    def forward(
        self, hidden: torch.Tensor, batch: ScheduleBatch, logits: Logits
    ) -> dict[int, bytes | SampleError]:
        """`hidden` [num_tokens, hidden_size]. By run id, of prompts that are whole behind this
        step: little-endian float32, of each token one vector after the other.
        """
        vectors: dict[int, bytes | SampleError] = {}
        to_head: list[tuple[Req, int]] = []  # with the row of its last token
        for idx, entry in enumerate(batch.entries[: batch.num_plain]):
            if entry.req.sampling.hidden_states:
                _put_vectors(entry, hidden[idx : idx + 1])
        end = batch.num_plain
        for entry in batch.others:
            start, end = end, end + entry.num_tokens
            req, pooling = entry.req, entry.req.pooling
            if req.sampling.hidden_states:
                _put_vectors(entry, hidden[start:end])
            if pooling is None:
                continue
            if pooling.each_token:
                _put_vectors(entry, _output_rows(hidden[start:end], pooling, logits))
                if entry.gives_embedding:
                    vectors[req.run_id] = _checked(b"".join(req.token_vectors))
                continue
            if pooling.kind is PoolingKind.MEAN:
                _add_to_sum(req, hidden[start:end], is_first=entry.start == 0)
            if not entry.gives_embedding:
                continue
            if pooling.kind is PoolingKind.LOGITS:
                to_head.append((req, end - 1))
            else:
                vectors[req.run_id] = embedding_vector(_pooled(req, hidden[end - 1]), pooling)
        if to_head:
            rows = logits(hidden[[row for _, row in to_head]])
            for (req, _), outputs in zip(to_head, rows, strict=True):
                assert req.pooling is not None
                vectors[req.run_id] = score_vector(outputs, req.pooling)
        return vectors


def _add_to_sum(req: Req, rows: torch.Tensor, *, is_first: bool) -> None:
    """A request that was retracted begins anew."""
    rows_sum = rows.sum(dim=0, dtype=torch.float32).numpy()
    if is_first:
        req.hidden_sum = rows_sum
    else:
        assert req.hidden_sum is not None, "a mean is computed from its first token on"
        req.hidden_sum = req.hidden_sum + rows_sum


def _put_vectors(entry: ScheduledReq, rows: torch.Tensor) -> None:
    """Keeps a vector of each token, in place of what guesses or a retracted run left."""
    vectors = entry.req.token_vectors
    del vectors[entry.start :]
    vectors += [row.tobytes() for row in rows.float().numpy().astype("<f4")]


def _output_rows(rows: torch.Tensor, pooling: PoolingParams, logits: Logits) -> torch.Tensor:
    """The outputs of each: [num_rows, num_numbers] float32."""
    if pooling.kind is PoolingKind.LOGITS:
        outputs = logits(rows).float()
        if not pooling.normalize:
            return outputs
        is_each_apart = pooling.are_independent or outputs.shape[1] == 1
        return outputs.sigmoid() if is_each_apart else outputs.softmax(dim=1)
    rows = rows.float()[:, : pooling.dimensions]
    return rows / rows.norm(dim=1, keepdim=True).clamp_min(_MIN_NORM) if pooling.normalize else rows


def _checked(vectors: bytes) -> bytes | SampleError:
    is_whole = bool(np.isfinite(np.frombuffer(vectors, "<f4")).all())
    return vectors if is_whole else SampleError.NOT_A_NUMBER


def _pooled(req: Req, last: torch.Tensor) -> torch.Tensor:
    """[hidden_size] float32."""
    if req.hidden_sum is None:
        return last.float()
    return torch.from_numpy(req.hidden_sum) / req.num_tokens


def embedding_vector(vector: torch.Tensor, pooling: PoolingParams) -> bytes | SampleError:
    """What is returned of `vector` [num_dimensions] float32, little-endian."""
    vector = vector[: pooling.dimensions]
    if pooling.normalize:
        vector = vector / vector.norm().clamp_min(_MIN_NORM)
    return _packed(vector)


def score_vector(outputs: torch.Tensor, pooling: PoolingParams) -> bytes | SampleError:
    """What is returned of `outputs` [num_outputs] float32, little-endian."""
    if pooling.token_ids:
        outputs = outputs[list(pooling.token_ids)]
    if pooling.normalize:
        is_each_apart = pooling.are_independent or len(outputs) == 1
        outputs = outputs.sigmoid() if is_each_apart else outputs.softmax(dim=0)
    return _packed(outputs)


def _packed(vector: torch.Tensor) -> bytes | SampleError:
    if not vector.isfinite().all():
        return SampleError.NOT_A_NUMBER
    return vector.numpy().astype("<f4").tobytes()
