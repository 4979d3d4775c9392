"""Prompts of random words, with shared beginnings if that is wanted."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from jetflock.bench.lengths import LengthMix
from jetflock.bench.prompt import Prompt
from jetflock.bench.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class RandomPrompts:
    """No two are alike. With `num_prefixes`, each begins with one of so many texts.

    The prefix comes on top of the drawn input length.
    """

    vocabulary: Vocabulary
    lengths: LengthMix
    told: str
    prefix_len: int = 0
    num_prefixes: int = 1

    def draw(self, seed: str) -> Iterator[Prompt]:
        """Endlessly; the same seed gives the same prompts. Prefixes depend on no seed."""
        rng = random.Random(seed)
        prefixes = [
            self.vocabulary.words(self.prefix_len, random.Random(f"prefix {idx}"))
            for idx in range(self.num_prefixes)
        ]
        while True:
            lengths = self.lengths.draw(rng)
            text = self.vocabulary.request_text(lengths.input_len, rng)
            opening, space, rest = text.partition(" ")
            prefix = rng.choice(prefixes)
            yield Prompt(f"{opening}{prefix}{space}{rest}", lengths.output_len)
