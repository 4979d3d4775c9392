"""Which parsers a model's answers are read with, and why."""

from __future__ import annotations

from frontend.parsers.reasoning import REASONING_PARSERS
from frontend.parsers.tool_parsers import TOOL_PARSERS
from shared.protocol.role_cards import ChosenParser, ChosenParsers

_FITS = "it fits the chat template"


def chosen_parsers(
    template: str | None, tool_parser: str | None = None, reasoning_parser: str = "auto"
) -> ChosenParsers:
    """`template`: the source of the model's; None: it has none.

    `tool_parser`, `reasoning_parser`: names that flags chose. None, "auto": the template says it;
    "none": there is none.
    """
    if template is None:
        nothing = ChosenParser("", "the model has no chat template")
        return ChosenParsers(nothing, nothing)
    return ChosenParsers(
        _tools(template, tool_parser),
        _reasoning(template, reasoning_parser),
    )


def _tools(template: str, name: str | None) -> ChosenParser:
    if name is not None:
        return ChosenParser(name, "--tool-parser")
    found = TOOL_PARSERS.fitting(template)
    if found is None:
        return ChosenParser("", "the chat template has calls in a form that is not known")
    if "tools" not in template:
        return ChosenParser(found.name, "the chat template knows no tools: the system message does")
    return ChosenParser(found.name, _FITS)


def _reasoning(template: str, name: str) -> ChosenParser:
    if name == "none":
        return ChosenParser("", "--reasoning-parser none")
    if name != "auto":
        return ChosenParser(name, "--reasoning-parser")
    found = REASONING_PARSERS.fitting(template)
    if found is None:
        return ChosenParser("", "the chat template sets no reasoning apart")
    return ChosenParser(found.name, _FITS)
