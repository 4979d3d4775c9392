"""Where prompts come from."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from jetflock.bench.prompt import LengthMix, Prompt, UniformLengths, sharegpt_like
from jetflock.bench.serve_config import BenchServeConfig
from jetflock.bench.served_model import ServedModel
from jetflock.bench.token_counter import TokenCounter
from shared.errors import ConfigError

_MAX_SAMPLE = 10_000  # conversations of a ShareGPT file whose tokens are counted
_NUM_AT_ONCE = 16
_OUTPUT_KEYS = ("output_len", "output_tokens", "max_tokens")
_DEFAULT_OUTPUT_LEN = 128
_OPENING = "Tell"  # every text begins with it, so that what stands before the words costs the same
_NUM_COPIES = 8
_MIN_WORDS = 48  # of one token: as many, and no other word is used
_WORDS = """
a about after again air all also always an and animal another answer are around as ask at away back
be bear because bed been before began below best better big bird black blue boat body book both box
boy bread bring brother brown but by call came can car cat change child city cold colour come could
country cut dance day did do dog done door down dragon draw dream each early earth eat egg end even
ever every eye face fall family far farm fast father feel feet few field find fire first fish five
flower fly food for forest found four fox friend from garden gave get girl give go gold good grass
great green ground grow had hand happy hard has hat have he head hear heart help her here high hill
him his home hope horse house how hundred ice idea if in into is it its jump just keep kind king
knew know land large last late laugh leaf learn left leg let letter life light like line little
live long look lost love made make man many map may me mean men milk mind moon more morning most
mother mountain mouse much music must my name near never new next night no north not now number of
off often old on once one only open or other our out over own page paper part people picture place
plant play point queen question quick rain ran read ready red rest right river road rock room round
run said same saw say school sea second see seed seven ship shoe short should show side silver sing
sister sit six sky sleep slow small snow so some song soon south stand star start still stone stop
story street strong sugar summer sun sweet table take talk tall tell ten than that the their them
then there these they thing think this those three time to today together told too took top town
train tree true try turn two under until up us use very voice wait walk wall want warm was watch
water way we week well went were west what wheel when where which while white who why will wind
winter wish with wolf woman wood word work world would write year yellow yes you young
"""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Words that cost so many tokens each, behind a space, and what every request costs besides."""

    costs: Mapping[str, int]
    base_len: int  # tokens of a request of the opening word alone, with template and marks

    @classmethod
    async def measure(cls, counter: TokenCounter) -> Vocabulary:
        """Asks for each word once."""
        base_len = await counter.count(_OPENING)
        gate = asyncio.Semaphore(_NUM_AT_ONCE)

        async def cost_of(word: str) -> int:
            async with gate:
                num_tokens = await counter.count(_OPENING + f" {word}" * _NUM_COPIES)
            return round((num_tokens - base_len) / _NUM_COPIES)

        words = _WORDS.split()
        found = await asyncio.gather(*(cost_of(word) for word in words))
        costs = {word: max(1, cost) for word, cost in zip(words, found, strict=True)}
        single = {word: 1 for word, cost in costs.items() if cost == 1}
        return cls(single if len(single) >= _MIN_WORDS else costs, base_len)

    def request_text(self, num_tokens: int, rng: random.Random) -> str:
        """The prompt of a request of so many tokens; the shortest there is if that is too few."""
        return _OPENING + self.words(num_tokens - self.base_len, rng)

    def words(self, num_tokens: int, rng: random.Random) -> str:
        """Makes so many tokens of words, each behind a space; fewer, where the last one does not
        fit.
        """
        if num_tokens <= 0:
            return ""
        words = list(self.costs)
        if sum(self.costs.values()) == len(words):
            return " " + " ".join(rng.choices(words, k=num_tokens))
        chosen: list[str] = []
        while words:
            word = rng.choice(words)
            if self.costs[word] <= num_tokens:
                chosen.append(word)
                num_tokens -= self.costs[word]
            else:
                words = [each for each in words if self.costs[each] <= num_tokens]
        return "".join(f" {word}" for word in chosen)


@dataclass(frozen=True, slots=True)
class RandomPrompts:
    """No two are alike. With `num_prefixes`, each begins with one of so many texts.

    The prefix comes on top of the drawn input length.
    """

    vocabulary: Vocabulary
    lengths: LengthMix
    description: str
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
    description: str

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
            lens = [value[key] for key in _OUTPUT_KEYS if key in value] or [self.default_output_len]
            if not isinstance(text, str):
                raise TypeError("prompt is no text")
            return Prompt(text, int(self.output_len or lens[0]), messages)
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
    def description(self) -> str:
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
    description = f"{mix.description}, {counter.name}"
    if config.prefix_len:
        description = (
            f"one of {config.num_prefixes} prefixes of {config.prefix_len}, then {description}"
        )
    return RandomPrompts(vocabulary, mix, description, config.prefix_len, config.num_prefixes)
