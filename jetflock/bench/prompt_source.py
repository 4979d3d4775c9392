"""Where prompts come from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from jetflock.bench.dataset_prompts import DatasetReader
from jetflock.bench.lengths import LengthMix, UniformLengths, sharegpt_like
from jetflock.bench.prompt import Prompt
from jetflock.bench.random_prompts import RandomPrompts
from jetflock.bench.serve_config import BenchServeConfig
from jetflock.bench.served_model import ServedModel
from jetflock.bench.token_counter import TokenCounter
from jetflock.bench.vocabulary import Vocabulary

_DEFAULT_OUTPUT_LEN = 128


class PromptSource(Protocol):
    """An endless row of prompts for each seed."""

    @property
    def told(self) -> str:
        """What they are, for a person."""
        ...

    def draw(self, seed: str) -> Iterator[Prompt]: ...


async def find_source(
    config: BenchServeConfig, counter: TokenCounter, model: ServedModel
) -> PromptSource:
    """Raises ConfigError or CallFailed."""
    output_len = config.output_len or _DEFAULT_OUTPUT_LEN
    if config.dataset is not None:
        reader = DatasetReader(
            counter, config.output_len, output_len, model.max_len, config.num_requests, config.seed
        )
        return await reader.read(config.dataset)
    mix: LengthMix = UniformLengths(config.input_len, output_len, config.range_ratio)
    if config.lengths == "sharegpt":
        mix = sharegpt_like(model.max_len)
    vocabulary = await Vocabulary.measure(counter)
    told = f"{mix.told}, {counter.name}"
    if config.prefix_len:
        told = f"one of {config.num_prefixes} prefixes of {config.prefix_len}, then {told}"
    return RandomPrompts(vocabulary, mix, told, config.prefix_len, config.num_prefixes)
