"""Prompts have the tokens they are asked to have."""

from __future__ import annotations

import asyncio
import json
import random
from itertools import islice
from pathlib import Path

import pytest

from jetflock.bench.prompt import UniformLengths
from jetflock.bench.prompt_source import DatasetPrompts, DatasetReader, RandomPrompts, Vocabulary
from jetflock.bench.token_counter import LocalTokens, TokenCounter, Words
from shared.errors import ConfigError
from tests.worker.checkpoints import DEMO_MODEL


class Letters:
    """A tokenizer that has nothing but letters, and a template of three tokens."""

    name = "letters"

    async def count(self, text: str) -> int:
        return 3 + len(text)


@pytest.mark.parametrize("counter", [LocalTokens(DEMO_MODEL), Words(), Letters()])
async def test_prompts_have_the_wanted_length(counter: TokenCounter) -> None:
    vocabulary = await Vocabulary.measure(counter)
    for num_tokens in (vocabulary.base_len, 12, 100, 1000):
        text = vocabulary.request_text(num_tokens, random.Random(num_tokens))
        # Letters: no word is shorter than "a" with its space, two tokens.
        assert num_tokens - 1 <= await counter.count(text) <= num_tokens


async def test_no_two_prompts_are_alike_and_the_same_seed_gives_the_same() -> None:
    vocabulary = await Vocabulary.measure(Words())
    source = RandomPrompts(vocabulary, UniformLengths(30, 5), "")
    first, again, other = (list(islice(source.draw(seed), 20)) for seed in ("1", "1", "2"))
    assert first == again
    assert len({prompt.text for prompt in first + other}) == 40


async def test_prefixes_are_shared() -> None:
    vocabulary = await Vocabulary.measure(Words())
    source = RandomPrompts(vocabulary, UniformLengths(10, 5), "", prefix_len=20, num_prefixes=3)
    prompts = [*islice(source.draw("1"), 60), *islice(source.draw("2"), 60)]
    assert len({tuple(prompt.text.split()[:21]) for prompt in prompts}) == 3
    assert {len(prompt.text.split()) for prompt in prompts} == {30}
    assert len({prompt.text for prompt in prompts}) == 120


def make_reader(output_len: int | None = None, max_len: int | None = None) -> DatasetReader:
    return DatasetReader(Words(), output_len, 9, max_len, None, 0)


async def read(path: Path, content: str, reader: DatasetReader) -> DatasetPrompts:
    await asyncio.to_thread(path.write_text, content)
    return await reader.read(path)


async def test_own_prompts(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "Hi"}]
    lines = ({"prompt": "One", "output_len": 3}, {"messages": chat}, {"prompt": "Two"})
    content = "\n\n".join(map(json.dumps, lines))
    source = await read(tmp_path / "a.jsonl", content, make_reader())
    assert [(each.text, each.output_len) for each in source.prompts] == [
        ("One", 3),
        ("", 9),
        ("Two", 9),
    ]
    assert source.prompts[1].messages == (chat[0],)
    drawn = list(islice(source.draw("1"), 6))
    assert drawn[:3] == drawn[3:]
    assert {each.text for each in drawn} == {"One", "Two", ""}


async def test_sharegpt(tmp_path: Path) -> None:
    def talk(*values: str) -> dict[str, object]:
        return {"conversations": [{"from": "x", "value": value} for value in values]}

    talks = [talk("a b", "c d e"), talk("alone"), talk("too " * 50, "long"), talk("f", "")]
    source = await read(tmp_path / "s.json", json.dumps(talks), make_reader(max_len=40))
    assert [(each.text, each.output_len) for each in source.prompts] == [("a b", 3)]
    source = await read(tmp_path / "s.json", json.dumps(talks[:1]), make_reader(output_len=7))
    assert source.prompts[0].output_len == 7


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"prompt": "a"}\n{"text": "b"}', "line 2 of"),
        ('{"prompt": 5}', "line 1 of"),
        ("[1, 2]", "is no ShareGPT file"),
        ("", "has no prompt that fits"),
    ],
)
async def test_files_that_are_no_dataset(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        await read(tmp_path / "x", content, make_reader())
    with pytest.raises(ConfigError, match="cannot read the dataset"):
        await make_reader().read(tmp_path / "absent")
