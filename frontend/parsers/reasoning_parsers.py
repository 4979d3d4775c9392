"""The forms of reasoning that are told from content, by name."""

from __future__ import annotations

from frontend.parsers.reasoning.deepseek_r1 import DeepseekR1
from frontend.parsers.reasoning.granite import Granite
from frontend.parsers.reasoning.reasoning_parser import ReasoningParser
from frontend.parsers.reasoning.think import MistralThink, Think
from frontend.parsers.registry import Registry

# A template may fit several: the first one is its own.
REASONING_PARSERS: Registry[ReasoningParser] = Registry(
    "reasoning parser", (Think(), MistralThink(), DeepseekR1(), Granite())
)
