"""The workload of an offline run: prompts and outputs of many lengths, all there at once."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from bench.gpu.direct_engine import random_prompts

SEED = 20261122


@dataclass(frozen=True, slots=True)
class OfflineMix:
    """Prompts and outputs of a tenth to the whole of a length, evenly."""

    prompts: Sequence[Sequence[int]]
    output_lens: Sequence[int]

    @classmethod
    def make(cls, num_requests: int, longest: int) -> Self:
        rng = random.Random(SEED)
        lens = [rng.randint(longest // 10, longest) for _ in range(2 * num_requests)]
        return cls(random_prompts(lens[:num_requests], SEED), lens[num_requests:])

    def first(self, num_requests: int) -> Self:
        return replace(
            self,
            prompts=self.prompts[:num_requests],
            output_lens=self.output_lens[:num_requests],
        )

    def another(self, seed: int) -> Self:
        """Of the same lengths: nothing of it is in a cache that has seen other seeds."""
        lens = [len(prompt) for prompt in self.prompts]
        return replace(self, prompts=random_prompts(lens, seed))

    def behind(self, prefix: Sequence[int]) -> Self:
        """Each prompt behind this prefix."""
        return replace(self, prompts=[[*prefix, *prompt] for prompt in self.prompts])

    @property
    def longest(self) -> int:
        """Of the requests, prompt and output."""
        return max(self._lens)

    @property
    def num_tokens(self) -> int:
        return sum(self._lens)

    @property
    def num_kv_reads(self) -> int:
        """Keys and values that decode steps read at least: each output token all before it."""
        return sum(
            output_len * (len(prompt) + output_len // 2)
            for prompt, output_len in zip(self.prompts, self.output_lens, strict=True)
        )

    @property
    def _lens(self) -> list[int]:
        pairs = zip(self.prompts, self.output_lens, strict=True)
        return [len(prompt) + output_len for prompt, output_len in pairs]
