"""Calls as the models of GLM 4.5 to 4.7 write them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import ClassVar

from frontend.parsers.calls.call_head import CallHead, Head, NoCall, name_end
from frontend.parsers.calls.json_span import skip_space
from frontend.parsers.calls.tagged_calls import TagForm, TaggedArguments, TaggedRules
from frontend.parsers.calls.tool_parser import ArgumentReader, CallableTool, MarkRef
from frontend.parsers.tools.hermes import Hermes
from shared.protocol.reply import ParamKind

_KEY, _KEY_END = "<arg_key>", "</arg_key>"
_VALUE, _VALUE_END = "<arg_value>", "</arg_value>"


class Glm45(Hermes):
    """`<tool_call>name`, and lines of `<arg_key>a</arg_key>` and `<arg_value>...</arg_value>`."""

    name = "glm45"
    aliases: ClassVar[tuple[str, ...]] = ("glm",)
    level = 3
    more_marks = (_KEY, _KEY_END, _VALUE, _VALUE_END)
    reads_kinds = True
    _line: ClassVar[str] = "\n"  # between marks

    @property
    def example(self) -> str:
        line = self._line
        value = f"{_KEY}<parameter>{_KEY_END}{line}{_VALUE}<value>{_VALUE_END}"
        return f"{self.marks.begin}<name>{line}{value}{line}{self.marks.end}"

    def fits(self, template: str) -> bool:
        return self.marks.begin in template and _KEY in template

    def behind_mark(self, text: str, at: int, names: Collection[str]) -> Head:
        end = name_end(text, at)
        behind = skip_space(text, end)
        if behind == len(text):
            return None
        marks = (_KEY, self.marks.end)
        if end > at and text.startswith(marks, behind):
            return CallHead(text[at:end], behind, None, in_object=False)
        is_open = end > at and any(mark.startswith(text[behind:]) for mark in marks)
        return None if is_open else NoCall()

    def arguments(self, kinds: Mapping[str, ParamKind]) -> ArgumentReader:
        return TaggedArguments(self._form, kinds)

    def calls_rule(self, ref: MarkRef, *, is_single: bool) -> str:
        one = f"call {ref(self.marks.end)}"
        between = '"\\n" ' if self._line else ""
        return one if is_single else f"{one} ({between}{ref(self.marks.begin)} {one})*"

    def call_rules(self, i: int, tool: CallableTool, ref: MarkRef) -> Iterator[str]:
        return TaggedRules(self._form, ref).call(i, tool, f"{tool.name}{self._line}")

    @property
    def _form(self) -> TagForm:
        between = (_KEY_END, _VALUE)
        return TagForm(_KEY, between, _VALUE_END, gap=self._line, line=self._line)


class Glm47(Glm45):
    """The same without lines: GLM 4.7."""

    name = "glm47"
    aliases = ()
    _line = ""

    def fits(self, template: str) -> bool:
        return super().fits(template) and f"{_KEY_END}{_VALUE}" in template
