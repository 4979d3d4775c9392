"""What the engine's benchmark asks of an engine."""

from __future__ import annotations

import random
from dataclasses import dataclass

from bench.checkpoint import SPECIAL_TOKENS


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests that come at once. Greedy; each makes `output_len` tokens, whatever they are."""

    name: str
    num_requests: int
    shared_len: int  # first tokens, the same in all prompts
    own_len: int
    output_len: int

    @property
    def prompt_len(self) -> int:
        return self.shared_len + self.own_len

    @property
    def is_prefill(self) -> bool:
        """Speed is in prompt tokens per second."""
        return self.output_len == 1

    @property
    def num_counted_tokens(self) -> int:
        """Those whose speed is reported: of the output, or of the prompts."""
        return self.num_requests * (self.prompt_len if self.is_prefill else self.output_len)

    @property
    def title(self) -> str:
        prompt = f"{self.shared_len} shared + {self.own_len}" if self.shared_len else self.own_len
        return f"{self.num_requests} x {prompt} in, {self.output_len} out"

    def prompts(self, vocab_size: int, seed: str) -> list[list[int]]:
        """Random ids; another seed gives prompts that no prefix cache has seen."""
        rng = random.Random(f"{self.name} {seed}")

        def ids(count: int) -> list[int]:
            return [rng.randrange(len(SPECIAL_TOKENS), vocab_size) for _ in range(count)]

        shared = ids(self.shared_len)
        return [shared + ids(self.own_len) for _ in range(self.num_requests)]


WORKLOADS = (
    Workload("W1", 1, 0, 128, 128),
    Workload("W2", 16, 0, 128, 128),
    Workload("W3", 64, 0, 128, 128),
    Workload("W4", 32, 1024, 32, 32),
    Workload("W5", 8, 0, 2048, 1),
    Workload("W6", 8, 0, 32, 64),
    Workload("W7", 1, 0, 512, 1),
)
