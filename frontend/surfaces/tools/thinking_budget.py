"""A bound on reasoning, as the engine takes it: by the tokens of a model's marks."""

from __future__ import annotations

import msgspec

from frontend.fields.sampling_fields import Sampling
from frontend.fields.thinking_fields import WantedBudget
from frontend.models.model_directory import ServedModel
from frontend.parsers.answer_parsers import AnswerParsers
from frontend.parsers.reasoning import ReasoningParser
from frontend.surfaces.tools.answer_styles import mark_ids
from shared.errors import InvalidRequest, UnsupportedParameter
from shared.protocol.reply import AnswerFormat
from shared.protocol.sampling import SamplingParams, ThinkingBudget


def with_budget(
    sampling: Sampling, wanted: WantedBudget | None, answer: AnswerFormat | None, model: ServedModel
) -> Sampling:
    """`answer`: the format of the answer where reasoning is told apart. Raises InvalidRequest."""
    if wanted is None:
        return sampling
    reasoning = None if answer is None else AnswerParsers.of(answer).reasoning
    if answer is None or reasoning is None:
        why = "is not supported for this model: it sets no reasoning apart"
        if sampling.grammar_param:
            why = f"does not work beside '{sampling.grammar_param}', which holds from the start on"
        raise UnsupportedParameter(wanted.param, why)
    if answer.reasoning_end_id is None:
        raise _spelled(wanted, reasoning.ends[0])
    is_open = answer.begins_in_reasoning or reasoning.is_implied
    may_begin = reasoning.has_channels or not is_open
    budget = ThinkingBudget(
        max_tokens=wanted.max_tokens,
        begin_ids=_begin_ids(reasoning, answer, model, wanted) if may_begin else (),
        end_id=answer.reasoning_end_id,
        is_open=is_open,
        repeats=reasoning.has_channels,
    )
    _check_may_end(sampling.params, budget.end_id, reasoning.ends[0], wanted)
    params = msgspec.structs.replace(sampling.params, thinking=budget)
    return msgspec.structs.replace(sampling, params=params)


def _begin_ids(
    reasoning: ReasoningParser, answer: AnswerFormat, model: ServedModel, wanted: WantedBudget
) -> tuple[int, ...]:
    """The opening mark in the one way in which a model can write it.

    Raises UnsupportedParameter where it may be spelled in pieces.
    """
    tokenizer, begin = model.text.tokenizer, reasoning.begins[0]
    if not begin.startswith(tuple(mark_ids(AnswerParsers.of(answer), tokenizer))):
        raise _spelled(wanted, begin)
    return tuple(tokenizer.encode(begin, add_special_tokens=False).ids)


def _spelled(wanted: WantedBudget, mark: str) -> UnsupportedParameter:
    return UnsupportedParameter(
        wanted.param,
        f"is not supported for this model: its mark {mark!r} is not one token of its vocabulary",
    )


def _check_may_end(params: SamplingParams, end_id: int, end: str, wanted: WantedBudget) -> None:
    """Raises InvalidRequest where the request itself forbids the mark."""
    allowed = params.allowed_token_ids
    if (end_id,) in params.bad_words or (allowed and end_id not in allowed):
        raise InvalidRequest(
            f"'{wanted.param}' is {wanted.max_tokens}: behind so many tokens comes {end!r}, which "
            "this request's allowed or bad tokens forbid",
            param=wanted.param,
        )
