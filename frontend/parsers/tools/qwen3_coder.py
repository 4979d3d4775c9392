"""Calls as Qwen 3 Coder writes them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from frontend.parsers.calls.call_head import CallHead, Head, NoCall, name_end
from frontend.parsers.calls.tagged_calls import TagForm, TaggedArguments, TaggedRules
from frontend.parsers.calls.tool_parser import ArgumentReader, CallableTool, MarkRef
from frontend.parsers.tools.hermes import Hermes
from shared.protocol.reply import ParamKind

FUNCTION = "<function="
_FORM = TagForm("<parameter=", (">",), "</parameter>", "</function>", pad="\n")


class Qwen3Coder(Hermes):
    """`<tool_call><function=name><parameter=a>...</parameter></function></tool_call>`."""

    name = "qwen3-coder"
    aliases = ("qwen3_coder",)
    reads_kinds = True

    def fits(self, template: str) -> bool:
        return super().fits(template) and FUNCTION in template

    def behind_mark(self, text: str, at: int, names: Collection[str]) -> Head:
        return _tagged_head(text, at)

    def arguments(self, kinds: Mapping[str, ParamKind]) -> ArgumentReader:
        return TaggedArguments(_FORM, kinds)

    def call_rules(self, i: int, tool: CallableTool, ref: MarkRef) -> Iterator[str]:
        return TaggedRules(_FORM, ref).call(i, tool, f"{FUNCTION}{tool.name}>\n")


def _tagged_head(text: str, at: int) -> Head:
    """The head of `<function=name>`; None while that is open."""
    end = text.find(">", at)
    if end < 0 and (FUNCTION.startswith(text[at:]) or text.startswith(FUNCTION, at)):
        is_open = name_end(text, min(len(text), at + len(FUNCTION))) == len(text)
        return None if is_open else NoCall()
    name = text[at + len(FUNCTION) : end]
    if not text.startswith(FUNCTION, at) or not name or name_end(name, 0) < len(name):
        return NoCall()
    return CallHead(name, end + 1, None, in_object=False)
