"""What is aimed at, as shares of what the same run measured, and whether it was reached."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Result = Mapping[str, Any]
BIG, MIDDLE, SMALL = "qwen3-8b", "qwen3-1.7b", "qwen3-0.6b"
GREEDY, SAMPLED = "greedy", "top-k, top-p"  # how tokens are chosen


def _all(result: Result) -> bool:
    return True


def _with(**facts: Any) -> Callable[[Result], bool]:
    return lambda result: facts.items() <= result.items()


def _many_rows(result: Result) -> bool:
    return bool(result["rows"] >= 32) and _is_greedy(result)


def _is_greedy(result: Result) -> bool:
    return bool(result["sampling"] == GREEDY)


@dataclass(frozen=True, slots=True)
class Goal:
    """Of several results that are meant, the worst counts."""

    name: str
    models: Sequence[str]
    stage: str
    field: str
    accept: float | None  # None: all below the goal is missed
    goal: float
    where: Callable[[Result], bool] = _all
    less_is_better: bool = False

    def result(self, results: Sequence[Result]) -> dict[str, Any]:
        values = [
            result[self.field]
            for result in results
            if result["stage"] == self.stage
            and result.get("model") in self.models
            and self.field in result
            and self.where(result)
        ]
        facts = {"goal": self.name, "accept": self.accept, "wanted": self.goal}
        if not values:
            return facts | {"reached": "not measured"}
        value = max(values) if self.less_is_better else min(values)
        return facts | {"value": value, "reached": self._reached(value)}

    def _reached(self, value: float) -> str:
        is_enough = operator.le if self.less_is_better else operator.ge
        if is_enough(value, self.goal):
            return "met"
        if self.accept is not None and is_enough(value, self.accept):
            return "accepted"
        return "missed"


_BOTH = (BIG, SMALL)
_SHARE, _PREFILL = ("decode", "share"), ("prefill", "share")
_SIXTY_FOUR = _with(rows=64, sampling=GREEDY)
_ONE, _ONE_SAMPLED = _with(rows=1, sampling=GREEDY), _with(rows=1, sampling=SAMPLED)
GOALS = (
    Goal("8B decode, 1 request", [BIG], *_SHARE, 0.74, 0.82, _ONE),
    Goal("8B decode, 32 to 256 requests", [BIG], *_SHARE, 0.72, 0.80, _many_rows),
    Goal("1.7B decode, 1 request", [MIDDLE], *_SHARE, 0.50, 0.60, _ONE),
    Goal("0.6B decode, 1 request, ms", [SMALL], "decode", "step_ms", 1.2, 0.9, _ONE, True),
    Goal("0.6B decode, 64 requests", [SMALL], *_SHARE, 0.60, 0.68, _SIXTY_FOUR),
    Goal("0.6B decode, 256 requests", [SMALL], *_SHARE, 0.72, 0.80, _with(rows=256)),
    Goal("8B decode, 1 request, sampled", [BIG], *_SHARE, 0.71, 0.80, _ONE_SAMPLED),
    Goal("8B prefill", [BIG], *_PREFILL, 0.60, 0.70, _with(tokens=8192, chunk=8192)),
    Goal("0.6B prefill", [SMALL], *_PREFILL, 0.35, 0.45, _with(tokens=4096, chunk=8192)),
    Goal("GPU idle between steps, us", _BOTH, "decode", "idle_us", 100.0, 30.0, _is_greedy, True),
    Goal("offline mix", _BOTH, "offline", "share", None, 0.75, _with(what="overlap")),
    Goal("offline, times generate_batch", _BOTH, "generate_batch", "ratio", None, 5.0),
)


def goal_results(results: Sequence[Result]) -> list[dict[str, Any]]:
    """One for each goal that speaks of a model of the run."""
    models = {result.get("model") for result in results}
    return [
        {"stage": "goal"} | goal.result(results)
        for goal in GOALS
        if not models.isdisjoint(goal.models)
    ]
