"""Calls as MiniMax M2 writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from frontend.parsers.calls.call_head import CallHead, Head, NoCall, name_end
from frontend.parsers.calls.marks import Marks
from frontend.parsers.calls.sectioned_calls import SectionedCalls
from frontend.parsers.calls.tagged_calls import TagForm, TaggedArguments, TaggedRules
from frontend.parsers.calls.tool_parser import ArgumentReader, CallableTool, MarkRef, Tail
from shared.protocol.reply import ParamKind

_INVOKE, _NAMED = '<invoke name="', '">'
_FORM = TagForm('<parameter name="', (_NAMED,), "</parameter>", "</invoke>")


class MinimaxM2(SectionedCalls):
    """`<invoke name="f">`, `<parameter name="a">...</parameter>` and `</invoke>` between marks."""

    name = "minimax_m2"
    aliases = ("minimax-m2",)
    level = 3
    marks = Marks("<minimax:tool_call>", "</minimax:tool_call>")
    reads_kinds = True

    @property
    def example(self) -> str:
        call = f'{_INVOKE}<name>{_NAMED}\n<parameter name="<parameter>"><value></parameter>\n'
        return f"{self.marks.begin}\n{call}</invoke>\n{self.marks.end}"

    def fits(self, template: str) -> bool:
        return self.marks.begin in template and _INVOKE in template

    def head(self, text: str, at: int) -> Head:
        if not text.startswith(_INVOKE, at):
            return None if _INVOKE.startswith(text[at:]) else NoCall()
        begin = at + len(_INVOKE)
        end = name_end(text, begin)
        if not text.startswith(_NAMED, end):
            return None if _NAMED.startswith(text[end:]) else NoCall()
        if end == begin:
            return NoCall()
        return CallHead(text[begin:end], end + len(_NAMED), None, in_object=False, in_list=True)

    def arguments(self, kinds: Mapping[str, ParamKind]) -> ArgumentReader:
        return TaggedArguments(_FORM, kinds)

    def tail(self, head: CallHead) -> Tail | None:
        return None

    def calls_rule(self, ref: MarkRef, *, is_single: bool) -> str:
        more = "" if is_single else ' ("\\n" call)*'
        return f'"\\n" call{more} "\\n" {ref(self.marks.end)}'

    def call_rules(self, i: int, tool: CallableTool, ref: MarkRef) -> Iterator[str]:
        return TaggedRules(_FORM, ref).call(i, tool, f"{_INVOKE}{tool.name}{_NAMED}\n")
