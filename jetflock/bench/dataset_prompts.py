"""Prompts from a file: JSON lines of one's own, or a ShareGPT file."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from jetflock.bench.prompt import Prompt
from jetflock.bench.token_counter import TokenCounter
from shared.errors import ConfigError

_MAX_SAMPLE = 10_000  # conversations of a ShareGPT file whose tokens are counted
_NUM_AT_ONCE = 16
_OUTPUT_KEYS = ("output_len", "output_tokens", "max_tokens")


@dataclass(frozen=True, slots=True)
class DatasetPrompts:
    """In an order that the seed draws; from the start again when there are too few."""

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
