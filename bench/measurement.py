"""What one run of one engine on one workload showed, and the medians of several."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

from bench.peers.runner import RequestTrace
from bench.workloads import Workload
from jetflock.bench.stage_summary import percentile


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run, or the median of each figure over several."""

    tokens_per_s: float  # of the output; of the prompts where a workload is all prefill
    ttft_p50_s: float  # from handing over all requests to the first token of each
    ttft_p99_s: float
    itl_p50_s: float  # time from a token to the next of the same request; 0 without a next one
    itl_p99_s: float
    elapsed_s: float  # to the last token
    peak_bytes: float
    cpu_s_per_token: float  # of all its processes, of the tokens whose speed is reported

    @classmethod
    def of(
        cls, workload: Workload, traces: Sequence[RequestTrace], peak_bytes: int, cpu_s: float
    ) -> Self:
        """Raises ValueError when tokens are missing."""
        for trace in traces:
            if len(trace.token_ids) != workload.output_len:
                raise ValueError(
                    f"{workload.name}: {len(trace.token_ids)} tokens came, "
                    f"{workload.output_len} were asked for"
                )
        first = [trace.times_s[0] for trace in traces]
        gaps = [
            later - earlier
            for trace in traces
            for earlier, later in itertools.pairwise(trace.times_s)
        ] or [0.0]
        elapsed_s = max(trace.times_s[-1] for trace in traces)
        return cls(
            tokens_per_s=workload.num_counted_tokens / elapsed_s,
            ttft_p50_s=statistics.median(first),
            ttft_p99_s=percentile(first, 99),
            itl_p50_s=statistics.median(gaps),
            itl_p99_s=percentile(gaps, 99),
            elapsed_s=elapsed_s,
            peak_bytes=peak_bytes,
            cpu_s_per_token=cpu_s / workload.num_counted_tokens,
        )

    @classmethod
    def median(cls, measurements: Sequence[Self]) -> Self:
        names = [field.name for field in fields(cls)]
        return cls(
            *(statistics.median(getattr(one, name) for one in measurements) for name in names)
        )
