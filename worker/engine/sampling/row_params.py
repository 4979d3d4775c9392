"""What a step's sampling needs of its requests, and what stays the same while they decode."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from shared.protocol.sampling import SamplingParams
from worker.engine.request.req import Req
from worker.engine.sampling.logits_processor import LogitsProcessor
from worker.engine.sampling.processors.grammars import Grammars
from worker.engine.sampling.processors.narrowing import Narrowings, narrows
from worker.engine.sampling.processors.operator_functions import OperatorFunctions
from worker.engine.sampling.processors.penalties import Penalties
from worker.engine.sampling.processors.timestamps import Timestamps
from worker.engine.sampling.processors.token_rules import (
    AllowedTokens,
    BannedTokens,
    ForcedTokens,
    TokenBiases,
)
from worker.engine.sampling.row_logprobs import Alternatives

# vLLM's order. What narrows to the draw comes last: it looks at what is left.
LOGITS_PROCESSORS: tuple[LogitsProcessor, ...] = (
    TokenBiases(),
    AllowedTokens(),
    BannedTokens(),
    OperatorFunctions(),
    Grammars(),
    Penalties(),
    ForcedTokens(),
    Timestamps(),
    Narrowings(),
)

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
    logprob_rows: list[tuple[int, Alternatives]]  # rows that ask for logprobs
    # Processors of logits that some request wants, in their order, with the rows of those.
    wanted_rows: list[tuple[LogitsProcessor, list[int]]]
    # The indices of the processors that each request wants.
    processor_ids: Mapping[Req, tuple[int, ...]]

    @classmethod
    def of(cls, reqs: Sequence[Req], before: RowParams | None = None) -> Self:
        """`before`: those of an earlier step. What a request wants never changes."""
        known = {} if before is None else before.processor_ids
        processor_ids = {req: known[req] if req in known else _processor_ids(req) for req in reqs}
        draws = np.frombuffer(b"".join(_pack(req.sampling) for req in reqs), _DTYPE)
        return cls(
            reqs=reqs,
            temperature=draws["temperature"],
            top_k=draws["top_k"],
            top_p=draws["top_p"],
            min_p=draws["min_p"],
            seeds=[req.sampling.seed for req in reqs],
            logprob_rows=[
                (row, Alternatives(req.sampling.logprobs, req.sampling.logprob_ids))
                for row, req in enumerate(reqs)
                if req.sampling.logprobs is not None
            ],
            wanted_rows=_wanted_rows([processor_ids[req] for req in reqs]),
            processor_ids=processor_ids,
        )


def _processor_ids(req: Req) -> tuple[int, ...]:
    return tuple(idx for idx, each in enumerate(LOGITS_PROCESSORS) if each.wants(req))


def _wanted_rows(processor_ids: list[tuple[int, ...]]) -> list[tuple[LogitsProcessor, list[int]]]:
    """`processor_ids`: of each row."""
    rows: dict[int, list[int]] = {}
    for row, wanted in enumerate(processor_ids):
        for idx in wanted:
            rows.setdefault(idx, []).append(row)
    return [(LOGITS_PROCESSORS[idx], rows[idx]) for idx in sorted(rows)]


def _pack(sampling: SamplingParams) -> bytes:
    if narrows(sampling):
        return _AS_IT_IS
    return _STRUCT.pack(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
