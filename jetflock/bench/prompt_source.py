"""Where prompts come from."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from jetflock.bench.prompt import LengthMix, Prompt, UniformLengths, sharegpt_like
from jetflock.bench.serve_config import BenchServeConfig
from jetflock.bench.served_model import ServedModel
from jetflock.bench.token_counter import TokenCounter
from jetflock.bench.vocabulary import Vocabulary
from shared.errors import ConfigError

_MAX_SAMPLE = 10_000  # conversations of a ShareGPT file whose tokens are counted
_NUM_AT_ONCE = 16
_OUTPUT_KEYS = ("output_len", "output_tokens", "max_tokens")
_DEFAULT_OUTPUT_LEN = 128


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


@dataclass(frozen=True, slots=True)
class DatasetPrompts:
    """The prompts of a file in an order that the seed draws; from the start again when there are
    too few.
    """

    prompts: Sequence[Prompt]
    told: str

    def draw(self, seed: str) -> Iterator[Prompt]:
        """Endlessly."""
        order = list(self.prompts)
        random.Random(seed).shuffle(order)
        return itertools.cycle(order)


@dataclass(frozen=True, slots=True)
class DatasetReader:
    """What the file's lines lack, and what limits them."""

    counter: TokenCounter
    output_len: int | None  # for all requests, whatever the file says
    default_output_len: int
    max_len: int | None
    num_wanted: int | None
    seed: int

    async def read(self, path: Path) -> DatasetPrompts:
        """Raises ConfigError."""
        try:
            content = await asyncio.to_thread(path.read_text)
        except (OSError, UnicodeDecodeError) as exc:
            raise ConfigError(f"cannot read the dataset {path}: {exc}") from exc
        if content.lstrip().startswith("["):
            prompts = await self._sharegpt(path, content)
        else:
            lines = enumerate(content.splitlines(), 1)
            prompts = [self._own(path, num, line) for num, line in lines if line.strip()]
        if not prompts:
            raise ConfigError(f"the dataset {path} has no prompt that fits")
        return DatasetPrompts(prompts, f"{len(prompts):,} prompts of {path.name}")

    def _own(self, path: Path, num: int, line: str) -> Prompt:
        try:
            value = json.loads(line)
            messages = tuple(value.get("messages") or ())
            text = value["prompt"] if not messages else ""
            told = [value[key] for key in _OUTPUT_KEYS if key in value] or [self.default_output_len]
            if not isinstance(text, str):
                raise TypeError("prompt is no text")
            return Prompt(text, int(self.output_len or told[0]), messages)
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise ConfigError(
                f"line {num} of {path} is no prompt ({exc!r}): "
                '{"prompt": ...} or {"messages": [...]}, and "output_len" if known'
            ) from exc

    async def _sharegpt(self, path: Path, content: str) -> list[Prompt]:
        """The first question of each conversation, and as many tokens as its answer has."""
        try:
            turns = [each["conversations"][:2] for each in json.loads(content)]
            pairs = [(a["value"], b["value"]) for a, b in (pair for pair in turns if len(pair) > 1)]
        except (ValueError, KeyError, TypeError) as exc:
            raise ConfigError(
                f"the dataset {path} is no ShareGPT file ({exc!r}): a list of "
                '{"conversations": [{"from": ..., "value": ...}, ...]}'
            ) from exc
        random.Random(self.seed).shuffle(pairs)
        gate = asyncio.Semaphore(_NUM_AT_ONCE)
        empty_len = await self.counter.count("")

        async def prompt_of(question: str, answer: str) -> Prompt | None:
            async with gate:
                input_len = await self.counter.count(question)
                output_len = self.output_len or await self.counter.count(answer) - empty_len
            fits = self.max_len is None or input_len + output_len <= self.max_len
            return Prompt(question, output_len) if fits and output_len > 0 else None

        sample = pairs[: min(_MAX_SAMPLE, self.num_wanted or _MAX_SAMPLE)]
        found = await asyncio.gather(*(prompt_of(*pair) for pair in sample))
        return [prompt for prompt in found if prompt is not None]


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
