"""The marks that set calls of tools and reasoning apart from content, by style."""

from __future__ import annotations

from typing import NamedTuple

from shared.protocol.reply import ReasoningStyle, ToolStyle


class Marks(NamedTuple):
    """Texts before and after; "" where a style has none."""

    begin: str
    end: str = ""


PYTHON_TAG = "<|python_tag|>"
ARGS = "[ARGS]"
CALL_ID = "[CALL_ID]"
TOOL_MARKS = {
    ToolStyle.HERMES: Marks("<tool_call>", "</tool_call>"),
    ToolStyle.LLAMA3: Marks(PYTHON_TAG),
    ToolStyle.MISTRAL: Marks("[TOOL_CALLS]"),
    ToolStyle.MISTRAL_ARGS: Marks("[TOOL_CALLS]"),
    ToolStyle.QWEN3_CODER: Marks("<tool_call>", "</tool_call>"),
    ToolStyle.JSON: Marks(""),
}
REASONING_MARKS = {
    ReasoningStyle.THINK: Marks("<think>", "</think>"),
    ReasoningStyle.MISTRAL: Marks("[THINK]", "[/THINK]"),
}


def marks_in_text(tools: ToolStyle | None, reasoning: ReasoningStyle | None) -> list[str]:
    """All that a reader of the text must see, also where a tokenizer hides it."""
    marks: list[str] = []
    if tools is not None:
        marks += TOOL_MARKS[tools]
    if tools in (ToolStyle.MISTRAL, ToolStyle.MISTRAL_ARGS):
        marks += [ARGS, CALL_ID]
    if reasoning is not None:
        marks += REASONING_MARKS[reasoning]
    return [mark for mark in marks if mark]
