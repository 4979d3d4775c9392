"""Reasoning in one pair of marks, as most models have it."""

from __future__ import annotations

from frontend.parsers.reasoning.reasoning_parser import ReasoningParser


class Think(ReasoningParser):
    """`<think>` and `</think>`: Qwen 3, DeepSeek R1, GLM and others."""

    name = "think"
    aliases = ("glm45", "qwen3")
    begins = ("<think>",)
    ends = ("</think>",)


class MistralThink(ReasoningParser):
    """`[THINK]` and `[/THINK]`."""

    name = "mistral"
    begins = ("[THINK]",)
    ends = ("[/THINK]",)
