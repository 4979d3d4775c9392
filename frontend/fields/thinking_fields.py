"""The fields that bound how much a model thinks: vLLM's, and what other servers call it."""

from __future__ import annotations

from typing import Any, NamedTuple

from frontend.fields.field_ranges import RANGES
from shared.errors import InvalidRequest, UnsupportedParameter

# vLLM's; Qwen's service's; llama.cpp's, old and new.
BUDGET_NAMES = (
    "thinking_token_budget", "thinking_budget", "thinking_budget_tokens", "reasoning_budget_tokens",
)  # fmt: skip
_OF_CUSTOM_PARAMS = "thinking_budget"  # SGLang's


class WantedBudget(NamedTuple):
    """Tokens of reasoning, and the field that says so."""

    max_tokens: int
    param: str


def thinking_budget(body: Any) -> WantedBudget | None:
    """None where a body bounds nothing. Raises InvalidRequest."""
    given = {name: getattr(body, name, None) for name in BUDGET_NAMES}
    custom = getattr(body, "custom_params", None) or {}
    for key in custom:
        if key != _OF_CUSTOM_PARAMS:
            raise UnsupportedParameter(f"custom_params.{key[:100]}")
    given[f"custom_params.{_OF_CUSTOM_PARAMS}"] = custom.get(_OF_CUSTOM_PARAMS)
    budgets = [WantedBudget(value, name) for name, value in given.items() if value is not None]
    for budget in budgets:
        if isinstance(budget.max_tokens, bool) or not isinstance(budget.max_tokens, int):
            raise InvalidRequest(
                f"'{budget.param}' must be an integer", param=budget.param, code="invalid_type"
            )
        RANGES[BUDGET_NAMES[0]].check(budget.param, budget.max_tokens)
        if budget.max_tokens != budgets[0].max_tokens:
            raise InvalidRequest(
                f"'{budget.param}' is {budget.max_tokens}, and '{budgets[0].param}' is "
                f"{budgets[0].max_tokens}: they exclude each other",
                param=budget.param,
            )
    return budgets[0] if budgets and budgets[0].max_tokens >= 0 else None
