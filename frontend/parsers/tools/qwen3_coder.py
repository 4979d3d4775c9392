"""Calls as Qwen 3 Coder and Seed-OSS write them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import ClassVar

from frontend.parsers.calls.call_head import CallHead, Head, NoCall, name_end
from frontend.parsers.calls.marks import Marks
from frontend.parsers.calls.tagged_calls import TagForm, TaggedArguments, TaggedRules
from frontend.parsers.calls.tool_parser import ArgumentReader, CallableTool, MarkRef
from frontend.parsers.tools.hermes import Hermes
from shared.protocol.reply import ParamKind

FUNCTION = "<function="


class Qwen3Coder(Hermes):
    """`<tool_call><function=name><parameter=a>...</parameter></function></tool_call>`."""

    name = "qwen3-coder"
    aliases: ClassVar[tuple[str, ...]] = ("qwen3_coder",)
    reads_kinds = True
    form: ClassVar[TagForm] = TagForm(
        "<parameter=", (">",), "</parameter>", "</function>", pad="\n"
    )

    def fits(self, template: str) -> bool:
        return super().fits(template) and FUNCTION in template

    def behind_mark(self, text: str, at: int, names: Collection[str]) -> Head:
        return _tagged_head(text, at)

    def arguments(self, kinds: Mapping[str, ParamKind]) -> ArgumentReader:
        return TaggedArguments(self.form, kinds)

    def call_rules(self, i: int, tool: CallableTool, ref: MarkRef) -> Iterator[str]:
        return TaggedRules(self.form, ref).call(i, tool, f"{FUNCTION}{tool.name}>\n")


class SeedOss(Qwen3Coder):
    """The same between `<seed:tool_call>` and `</seed:tool_call>`, values on the lines of tags."""

    name = "seed_oss"
    aliases = ()
    level = 4
    marks = Marks("<seed:tool_call>", "</seed:tool_call>")
    form = TagForm("<parameter=", (">",), "</parameter>", "</function>")


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
