"""What choosing tokens costs: one step of 64 rows over 49,152 ids, beside nothing else.

    python -m bench.sampler [--rows 64] [--rounds 7]

Each line is the median of the rounds, in milliseconds a step. Logits are normal with a standard
deviation of 2 (flat: top_p keeps thousands of tokens) or 6 (peaked: it keeps a few).
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch

from shared.protocol.sampling import SamplingParams
from shared.protocol.token_ids import pack_token_ids
from worker.engine.request.arrival import Arrival
from worker.engine.request.req import Req
from worker.engine.request.schedule_batch import SamplePoint
from worker.engine.request.stop_check import StopCheck
from worker.engine.sampling.sampler import Sampler
from worker.engine.sampling.sampling_batch import SamplingBatch
from worker.engine_link.engine_messages import AddRequest, RunOptions

VOCAB_SIZE = 49_152
CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "top_k 50": {"temperature": 0.8, "top_k": 50},
    "top_p 0.9": {"temperature": 0.8, "top_p": 0.9},
    "top_k 50, top_p 0.9": {"temperature": 0.8, "top_k": 50, "top_p": 0.9},
    "min_p 0.05": {"temperature": 0.8, "min_p": 0.05},
    "greedy, penalties": {"temperature": 0.0, "repetition_penalty": 1.2},
    "greedy, 300 biases": {
        "temperature": 0.0,
        "logit_bias": tuple((idx, 1.0) for idx in range(300)),
    },
    "greedy, 5 logprobs": {"temperature": 0.0, "logprobs": 5},
}
SPREADS = {"flat": 2.0, "peaked": 6.0}


def make_points(num_rows: int, sampling: dict[str, Any]) -> list[SamplePoint]:
    """Requests with a prompt and an output of 128 tokens each."""
    stop_check = StopCheck((0,), 10**6)
    prompt, output = pack_token_ids(range(1, 129)), pack_token_ids(range(500, 628))
    runs = [
        AddRequest(
            run_id=row,
            prompt_ids=prompt,
            output_ids=output,
            options=RunOptions(sampling=SamplingParams(max_tokens=10**6, seed=row, **sampling)),
        )
        for row in range(num_rows)
    ]
    return [SamplePoint.after(Req(Arrival(run, 0), stop_check)) for run in runs]


def step_ms(sampler: Sampler, logits: torch.Tensor, points: list[SamplePoint]) -> float:
    """Of fresh logits: a step overwrites them."""
    own = logits.clone()
    begin = time.perf_counter()
    sampler.forward(own, SamplingBatch.from_points(points, VOCAB_SIZE))
    return (time.perf_counter() - begin) * 1000


def main() -> None:
    """Cases take turns, so that a noisy moment hits all of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    sampler = Sampler(VOCAB_SIZE)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(args.rows, VOCAB_SIZE, generator=generator)
    points = {name: make_points(args.rows, sampling) for name, sampling in CASES.items()}
    times: dict[tuple[str, str], list[float]] = {}
    for round_idx in range(args.rounds + 1):
        for spread, factor in SPREADS.items():
            logits = noise * factor
            for name in CASES:
                elapsed_ms = step_ms(sampler, logits, points[name])
                if round_idx:  # the first round warms up
                    times.setdefault((name, spread), []).append(elapsed_ms)
    head = f"{args.rows} rows, {VOCAB_SIZE} ids; ms a step"
    print(f"{head:37}" + "".join(f"{each:>10}" for each in SPREADS))
    for name in CASES:
        medians = [statistics.median(times[name, spread]) for spread in SPREADS]
        print(f"{name:37}" + "".join(f"{each:10.2f}" for each in medians))


if __name__ == "__main__":
    main()
