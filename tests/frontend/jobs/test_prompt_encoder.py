"""Long texts leave the event loop to others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from frontend.jobs.job import Caller
from frontend.jobs.prompt_encoder import PIECE_CHARS, PromptEncoder, groups
from frontend.models.model_directory import ServedModel
from shared.errors import ContextLengthExceeded
from tests.frontend.directory import make_directory
from tests.frontend.tiny_model import make_tokenizer

CALLER = Caller()
TEXT = "Once upon a time. " * 10_000
Work = Callable[[PromptEncoder, ServedModel], Awaitable[Any]]


@pytest.mark.parametrize(
    "work",
    [
        lambda encoder, model: encoder.encode(
            CALLER, model, TEXT, "prompt", add_special_tokens=True, limit=10**6
        ),
        lambda encoder, model: encoder.encode(
            CALLER, model, TEXT, "prompt", add_special_tokens=True, max_tokens=150_000
        ),
        lambda encoder, model: encoder.encode_batch(CALLER, model, [TEXT], ["input"], 10**6),
    ],
    ids=["text", "cut", "batch"],
)
async def test_the_loop_runs_on_while_a_long_text_is_encoded(work: Work) -> None:
    encoder, model = PromptEncoder(), await make_directory().model("tiny")
    await work(encoder, model)  # the thread has started
    task = asyncio.ensure_future(work(encoder, model))
    num_turns = 0
    while not task.done():
        await asyncio.sleep(0.001)
        num_turns += 1
    assert await task
    assert num_turns > 10, "whoever holds the interpreter lock lets it turn once or twice"
    encoder.close()


async def test_ids_become_the_text_again() -> None:
    encoder, model = PromptEncoder(), await make_directory().model("tiny")
    for text in ("", "Hé! 🐉<|im_end|>", "x" * 2000):
        ids = await encoder.encode(CALLER, model, text, "prompt", add_special_tokens=False)
        assert await encoder.decode(CALLER, model, ids) == text
    encoder.close()


@pytest.mark.parametrize("text", ["x" * 8_000_000, "Once upon a time. " * 450_000, " " * 8_000_000])
async def test_a_text_that_is_far_too_long_costs_a_piece(text: str) -> None:
    encoder, model = PromptEncoder(), await make_directory().model("tiny")
    counted: list[int] = []
    count = encoder._meter._num_tokens

    async def noted(tenant: str, model: ServedModel, piece: str) -> int:
        counted.append(len(piece))
        return await count(tenant, model, piece)

    encoder._meter._num_tokens = noted  # type: ignore[method-assign]
    with pytest.raises(ContextLengthExceeded, match="512 tokens, but the prompt has more"):
        await encoder.encode(CALLER, model, text, "prompt", add_special_tokens=True)
    with pytest.raises(ContextLengthExceeded, match="but 'input' has more"):
        await encoder.encode_batch(CALLER, model, [text], ["input"])
    assert len(counted) == 2
    assert max(counted) <= PIECE_CHARS
    encoder.close()


@pytest.fixture(scope="module")
def whole_ids() -> list[int]:
    """Those of the long text, encoded as a whole."""
    (whole,) = make_tokenizer().encode_batch_fast([TEXT], add_special_tokens=False)
    ids: list[int] = whole.ids
    return ids


@pytest.mark.parametrize("num_tokens", [1, 512, 30_000, 100_000])
async def test_a_long_text_is_cut_as_if_it_had_been_encoded_as_a_whole(
    whole_ids: list[int], num_tokens: int
) -> None:
    encoder, model = PromptEncoder(), await make_directory().model("tiny")
    end = await encoder.encode(
        CALLER, model, TEXT, "prompt", add_special_tokens=False, max_tokens=num_tokens
    )
    assert end == whole_ids[-num_tokens:]
    (start,) = await encoder.encode_batch(CALLER, model, [TEXT], ["input"], num_tokens)
    assert start[1:] == whole_ids[: num_tokens - 1], "behind the special token"
    encoder.close()


async def test_a_prompt_as_long_as_the_model_is_never_refused() -> None:
    num_chars = 3 * PIECE_CHARS
    directory = make_directory(max_context_len=num_chars + 1)
    encoder, model = PromptEncoder(), await directory.model("tiny")
    text = ("x" * 9 + " ") * (num_chars // 10 + 1)
    ids = await encoder.encode(CALLER, model, text[:num_chars], "prompt", add_special_tokens=True)
    assert len(ids) == num_chars + 1
    with pytest.raises(ContextLengthExceeded):
        await encoder.encode(CALLER, model, text * 2, "prompt", add_special_tokens=True)
    encoder.close()


class Gone:
    """A client that leaves while its text is encoded."""

    async def during(self, work: Awaitable[Any]) -> Any:
        async with asyncio.timeout(0.01):
            return await work


async def test_what_nobody_waits_for_is_not_counted_to_its_end() -> None:
    text = "Once upon a time. " * 450_000
    encoder, model = PromptEncoder(1), await make_directory(max_context_len=10**7).model("tiny")
    with pytest.raises(TimeoutError):
        await encoder.encode(
            Caller(presence=Gone()), model, text, "prompt", add_special_tokens=True
        )
    async with asyncio.timeout(1):
        await encoder.run(CALLER, 10_000, lambda: None)
    encoder.close()


def test_groups_are_neighbours_of_about_a_piece() -> None:
    half = PIECE_CHARS // 2
    sizes = [1, half, half, 3 * PIECE_CHARS, half, half, 1]
    found = [list(items) for items, _ in groups(range(len(sizes)), sizes)]
    assert found == [[0, 1], [2], [3], [4, 5], [6]]
    assert list(groups([], [])) == []
