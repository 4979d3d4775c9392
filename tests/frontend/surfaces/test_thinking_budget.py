"""`thinking_token_budget` and its other names: what the engine is told, and what is refused."""

from __future__ import annotations

from typing import Any, cast

import pytest
from tokenizers import AddedToken

from frontend.jobs.job import Caller, Job
from frontend.jobs.prompt_encoder import PromptEncoder
from frontend.models.model_directory import ModelDirectory
from frontend.parsers import channels
from frontend.surfaces.anthropic.message_request import MessageRequests
from frontend.surfaces.responses.request import ResponseRequests
from frontend.surfaces.tools.answer_styles import AnswerStyles
from shared.checkpoint.tokenizer_bundle import TokenizerBundle
from shared.errors import RequestError
from shared.protocol.sampling import ThinkingBudget
from tests.frontend.directory import AllRequests, FakeCatalog, make_image_loader
from tests.frontend.published_templates import GPT_OSS
from tests.frontend.surfaces.test_reasoning_tokens import BEGIN, END, thinking_bundle
from tests.frontend.surfaces.test_tools import CHATML_TOOLS, TOOLS
from tests.frontend.tiny_model import make_bundle, make_card, make_tokenizer

BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Weather?"}]}
OPEN: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": True}}


def directory_of(bundle: TokenizerBundle) -> ModelDirectory:
    return ModelDirectory(FakeCatalog(bundle, make_card(bundle, vocab_size=300)))  # type: ignore[arg-type]


def requests_of(bundle: TokenizerBundle, parser: str = "auto") -> AllRequests:
    return AllRequests(directory_of(bundle), AnswerStyles(reasoning_parser=parser))


async def budget_of(fields: dict[str, Any], parser: str = "auto") -> ThinkingBudget | None:
    job = await requests_of(thinking_bundle(), parser).chat.job({**BODY, **fields}, Caller())
    return job.sampling.params.thinking


async def job_of_message(thinking: Any) -> Job:
    directory = directory_of(thinking_bundle())
    requests = MessageRequests(directory, AllRequests(directory).chat)
    return await requests.job({**BODY, "max_tokens": 50, "thinking": thinking}, Caller())


@pytest.mark.parametrize(
    "fields",
    [
        {"thinking_token_budget": 9},
        {"thinking_budget": 9},
        {"thinking_budget_tokens": 9, "reasoning_budget_tokens": 9},
        {"custom_params": {"thinking_budget": 9}},
        {"thinking_token_budget": 9, "separate_reasoning": False},
        {"thinking_token_budget": 9, "include_reasoning": False},
        {"thinking_token_budget": 9, "tools": TOOLS, "tool_choice": "required"},
    ],
)
async def test_each_name_bounds_the_reasoning(fields: dict[str, Any]) -> None:
    assert await budget_of(fields) == ThinkingBudget(9, (BEGIN,), END)
    assert await budget_of(fields | OPEN) == ThinkingBudget(9, (), END, is_open=True)


@pytest.mark.parametrize("fields", [{}, {"thinking_token_budget": -1}, {"custom_params": {}}])
async def test_without_one_nothing_is_bounded(fields: dict[str, Any]) -> None:
    assert await budget_of(fields) is None


async def test_a_model_that_thinks_from_its_first_token_on_needs_no_mark() -> None:
    budget = await budget_of({"thinking_token_budget": 0}, "deepseek_r1")
    assert budget == ThinkingBudget(0, (), END, is_open=True)


async def test_a_thought_that_goes_on_is_open() -> None:
    messages = [*BODY["messages"], {"role": "assistant", "content": "<think>Well"}]
    fields = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
    budget = await budget_of({**fields, "thinking_token_budget": 3})
    assert budget == ThinkingBudget(3, (), END, is_open=True)


async def test_channels_may_think_again() -> None:
    tokenizer = make_tokenizer()
    tokenizer.add_tokens([AddedToken(mark, special=True) for mark in channels.MARKS])
    files = {"tokenizer.json": tokenizer.to_str().encode()}
    bundle = TokenizerBundle({**make_bundle(GPT_OSS).files, **files})
    job = await requests_of(bundle).chat.job({**BODY, "thinking_token_budget": 5}, Caller())
    budget = job.sampling.params.thinking
    assert budget is not None
    assert (budget.repeats, budget.is_open, job.needed_level) == (True, False, 3)
    assert budget.begin_ids[0] == tokenizer.token_to_id(channels.CHANNEL)
    assert budget.begin_ids[-1] == tokenizer.token_to_id(channels.MESSAGE)
    assert budget.end_id == tokenizer.token_to_id(channels.END)
    assert tokenizer.decode(budget.begin_ids, skip_special_tokens=False) == channels.ANALYSIS


async def test_responses_and_messages_have_it() -> None:
    directory, nothing = directory_of(thinking_bundle()), cast(Any, None)
    requests = ResponseRequests(directory, PromptEncoder(), nothing, nothing, make_image_loader())
    response = {"model": "tiny", "input": "Hi", "thinking_token_budget": 7}
    job = await requests.job(response, Caller())
    assert job.sampling.params.thinking == ThinkingBudget(7, (BEGIN,), END)
    job = await job_of_message({"type": "enabled", "budget_tokens": 1024})
    assert job.sampling.params.thinking == ThinkingBudget(1024, (), END, is_open=True)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"thinking_token_budget": -2}, "thinking_token_budget", "is -2"),
        ({"thinking_token_budget": "many"}, "thinking_token_budget", "int"),
        ({"custom_params": {"thinking_budget": True}}, "custom_params.thinking_budget", "integer"),
        ({"custom_params": {"other": 1}}, "custom_params.other", "not supported"),
        ({"thinking_budget": 3, "thinking_token_budget": 4}, "thinking_budget", "exclude"),
        (
            {"thinking_token_budget": 4, "response_format": {"type": "json_object"}},
            "thinking_token_budget",
            "beside 'response_format'",
        ),
        (
            {"thinking_token_budget": 4, "allowed_token_ids": [5]},
            "thinking_token_budget",
            "'</think>', which this request's",
        ),
        (
            {"thinking_token_budget": 4, "bad_token_ids": [END]},
            "thinking_token_budget",
            "tokens forbid",
        ),
        ({"thinking_token_budget": 4, "use_beam_search": True}, "thinking_token_budget", "exclude"),
    ],
)
async def test_refusals(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        await budget_of(fields)
    assert (caught.value.param, caught.value.status_code) == (param, 400)


@pytest.mark.parametrize(
    ("template", "parser", "words"),
    [
        (CHATML_TOOLS, "none", "sets no reasoning apart"),
        ("{{ messages }}", "auto", "sets no reasoning apart"),
        (CHATML_TOOLS, "auto", "'</think>' is not one token"),
        (CHATML_TOOLS, "granite", "not one token"),
    ],
)
async def test_models_without_marks_are_refused(template: str, parser: str, words: str) -> None:
    requests = requests_of(make_bundle(template), parser)
    with pytest.raises(RequestError, match=words) as caught:
        await requests.chat.job({**BODY, "thinking_token_budget": 4}, Caller())
    assert caught.value.param == "thinking_token_budget"


@pytest.mark.parametrize("value", [0, 1.5, True])
async def test_budgets_of_messages_are_positive(value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        await job_of_message({"type": "enabled", "budget_tokens": value})
    assert caught.value.param == "thinking.budget_tokens"


async def test_texts_take_none() -> None:
    body = {"model": "tiny", "prompt": "Hi", "thinking_token_budget": 4}
    with pytest.raises(RequestError, match="chats take it"):
        await requests_of(thinking_bundle()).completions.job(body, Caller())
