"""`suffix`: a prompt with a gap, for models whose tokenizer has marks for it."""

from __future__ import annotations

from typing import Any

import pytest

from frontend.jobs.job import Caller, Job
from frontend.models.tokenizer_facts import FillInMiddle
from shared.errors import RequestError
from tests.frontend.directory import FIM_MARKS, AllRequests, make_filling_directory, tokenizer_with
from tests.frontend.tiny_model import make_tokenizer

QWEN = FIM_MARKS
DEEPSEEK = ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>")  # noqa: RUF001


async def job_of(*marks: str, **fields: Any) -> Job:
    body = {"model": "tiny", "prompt": "def f(", "suffix": "return x", **fields}
    return await AllRequests(make_filling_directory(*marks)).completions.job(body, Caller())


@pytest.mark.parametrize("marks", [QWEN, DEEPSEEK])
async def test_the_gap_stands_behind_both_sides(marks: tuple[str, str, str]) -> None:
    job = await job_of("<|file_sep|>", *marks)
    tokenizer = tokenizer_with("<|file_sep|>", *marks)
    before, behind, gap = marks
    prompt = job.prompts[0].token_ids
    written = tokenizer.decode(prompt, skip_special_tokens=False)
    assert written == f"<s>{before}def f({behind}return x{gap}"
    assert prompt[-1] == tokenizer.token_to_id(gap)
    ends = {tokenizer.token_to_id(end) for end in ("<|file_sep|>", *marks)}
    assert set(job.sampling.params.stop_token_ids) == ends


async def test_each_prompt_has_the_gap_and_an_empty_suffix_is_none() -> None:
    two = await job_of(*QWEN, prompt=["a", "b"], stop_token_ids=[7])
    assert len(two.prompts) == 2
    assert two.sampling.params.stop_token_ids[0] == 7
    plain = await job_of(suffix="")
    assert plain.prompts[0].token_ids == make_tokenizer().encode("def f(").ids


def test_only_single_added_tokens_are_marks() -> None:
    assert FillInMiddle.of(make_tokenizer()) is None
    assert FillInMiddle.of(tokenizer_with(*QWEN[:2])) is None


@pytest.mark.parametrize(
    ("marks", "fields", "param"),
    [
        ((), {}, "suffix"),
        (QWEN, {"suffix": 1}, "suffix"),
        (QWEN, {"echo": True}, "echo"),
        (QWEN, {"truncate_prompt_tokens": 3}, "truncate_prompt_tokens"),
        (QWEN, {"prompt": [1, 2]}, "prompt"),
    ],
)
async def test_what_cannot_be_filled_is_refused(
    marks: tuple[str, ...], fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(RequestError) as caught:
        await job_of(*marks, **fields)
    assert caught.value.param == param
    assert caught.value.status_code == 400
