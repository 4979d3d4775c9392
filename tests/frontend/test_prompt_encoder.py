"""Long texts leave the event loop to others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from frontend.model_directory import ServedModel
from frontend.prompt_encoder import PromptEncoder
from tests.frontend.directory import make_directory

TEXT = "Once upon a time. " * 20_000
Work = Callable[[PromptEncoder, ServedModel], Awaitable[Any]]


@pytest.mark.parametrize(
    "work",
    [
        lambda encoder, model: encoder.encode(model, TEXT, add_special_tokens=True),
        lambda encoder, model: encoder.encode(model, TEXT, add_special_tokens=True, max_tokens=9),
        lambda encoder, model: encoder.encode_batch(model, [TEXT]),
        lambda encoder, model: encoder.encode_chat(
            model,
            [{"role": "user", "content": TEXT}],
            add_generation_prompt=True,
            continue_final_message=False,
            template_kwargs={},
        ),
    ],
    ids=["text", "cut", "batch", "chat"],
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
        ids = await encoder.encode(model, text, add_special_tokens=False)
        assert await encoder.decode(model, ids) == text
    encoder.close()
