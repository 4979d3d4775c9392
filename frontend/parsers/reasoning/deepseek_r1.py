"""Reasoning of models that always think first, whether they say so or not."""

from __future__ import annotations

from frontend.parsers.reasoning.reasoning_parser import ReasoningParser


class DeepseekR1(ReasoningParser):
    """All up to `</think>`. No template tells that a model leaves the opening mark out."""

    name = "deepseek_r1"
    level = 3
    begins = ("<think>",)
    ends = ("</think>",)
    is_implied = True

    def fits(self, template: str) -> bool:
        return False
