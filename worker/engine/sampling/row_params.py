"""What a step's sampling needs of its requests, and what stays the same while they decode."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from shared.protocol.sampling import SamplingParams
from worker.engine.request.req import Req
from worker.engine.sampling.narrowing import narrows

_STRUCT = struct.Struct("<fqff")
_AS_IT_IS = _STRUCT.pack(1.0, 0, 1.0, 0.0)
_DTYPE = np.dtype(
    [("temperature", "<f4"), ("top_k", "<i8"), ("top_p", "<f4"), ("min_p", "<f4")], align=False
)


@dataclass(frozen=True, slots=True)
class RowParams:
    """One row for each sample point. Valid as long as the same requests come in the same order."""

    reqs: Sequence[Req]  # [num_rows]
    temperature: npt.NDArray[np.float32]  # [num_rows], 0 is greedy
    top_k: npt.NDArray[np.int64]  # [num_rows], 0 is off
    top_p: npt.NDArray[np.float32]  # [num_rows]
    min_p: npt.NDArray[np.float32]  # [num_rows]
    seeds: list[int]  # [num_rows], 64 bits
    logprob_rows: list[tuple[int, int]]  # rows that ask for logprobs, and for how many others
    changing_rows: list[int]  # whose logits biases, bans or penalties may change
    grammar_rows: list[int]
    narrowed_rows: list[int]  # whose logits come scaled and narrowed to the draw

    @classmethod
    def of(cls, reqs: Sequence[Req]) -> Self:
        draws = np.frombuffer(b"".join(_pack(req.sampling) for req in reqs), _DTYPE)
        return cls(
            reqs=reqs,
            temperature=draws["temperature"],
            top_k=draws["top_k"],
            top_p=draws["top_p"],
            min_p=draws["min_p"],
            seeds=[req.sampling.seed for req in reqs],
            logprob_rows=[
                (row, req.sampling.logprobs)
                for row, req in enumerate(reqs)
                if req.sampling.logprobs is not None
            ],
            changing_rows=[row for row, req in enumerate(reqs) if req.may_change_logits],
            grammar_rows=[row for row, req in enumerate(reqs) if req.matcher is not None],
            narrowed_rows=[row for row, req in enumerate(reqs) if narrows(req.sampling)],
        )


def _pack(sampling: SamplingParams) -> bytes:
    if narrows(sampling):
        return _AS_IT_IS
    return _STRUCT.pack(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
