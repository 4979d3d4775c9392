"""Calls as MiniMax M2 writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from frontend.parsers.calls.call_head import CallHead, Head, NoCall, name_end
from frontend.parsers.calls.marks import Marks
from frontend.parsers.calls.sectioned_calls import SectionedCalls
from frontend.parsers.calls.tagged_calls import TagForm, TaggedArguments, TaggedRules
from frontend.parsers.calls.tool_parser import ArgumentReader, CallableTool, MarkRef, Tail
from shared.protocol.reply import ParamKind

_NAMED = '">'


class MinimaxM2(SectionedCalls):
    """`<invoke name="f">`, `<parameter name="a">...</parameter>` and `</invoke>` between marks."""

    name = "minimax_m2"
    aliases: ClassVar[tuple[str, ...]] = ("minimax-m2",)
    level = 3
    marks = Marks("<minimax:tool_call>", "</minimax:tool_call>")
    reads_kinds = True
    invoke: ClassVar[str] = '<invoke name="'
    form: ClassVar[TagForm] = TagForm('<parameter name="', (_NAMED,), "</parameter>", "</invoke>")

    @property
    def example(self) -> str:
        form, head = self.form, f"{self.invoke}<name>{_NAMED}"
        call = f"{head}\n{form.begin}<parameter>{_NAMED}<value>{form.end}\n{form.close}"
        return f"{self.marks.begin}\n{call}\n{self.marks.end}"

    def fits(self, template: str) -> bool:
        return self.marks.begin in template and self.invoke in template

    def head(self, text: str, at: int) -> Head:
        if not text.startswith(self.invoke, at):
            return None if self.invoke.startswith(text[at:]) else NoCall()
        begin = at + len(self.invoke)
        end = name_end(text, begin)
        if not text.startswith(_NAMED, end):
            return None if _NAMED.startswith(text[end:]) else NoCall()
        if end == begin:
            return NoCall()
        return CallHead(text[begin:end], end + len(_NAMED), None, in_object=False, in_list=True)

    def arguments(self, kinds: Mapping[str, ParamKind]) -> ArgumentReader:
        return TaggedArguments(self.form, kinds)

    def tail(self, head: CallHead) -> Tail | None:
        return None

    def calls_rule(self, ref: MarkRef, *, is_single: bool) -> str:
        more = "" if is_single else ' ("\\n" call)*'
        return f'"\\n" call{more} "\\n" {ref(self.marks.end)}'

    def call_rules(self, i: int, tool: CallableTool, ref: MarkRef) -> Iterator[str]:
        return TaggedRules(self.form, ref).call(i, tool, f"{self.invoke}{tool.name}{_NAMED}\n")
