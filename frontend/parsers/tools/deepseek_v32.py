"""Calls as DeepSeek V3.2 writes them: DSML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from frontend.parsers.calls.marks import Marks
from frontend.parsers.calls.tagged_calls import TagForm, TaggedArguments, TaggedRules
from frontend.parsers.calls.tool_parser import ArgumentReader, CallableTool, MarkRef
from frontend.parsers.tools.minimax import MinimaxM2
from shared.protocol.reply import ParamKind

_DSML = "\uff5cDSML\uff5c"
_IS_TEXT = '" string="'  # behind the name of a parameter: `true`, or `false` of a value in JSON


class DeepseekV32(MinimaxM2):
    """MiniMax's tags, with marks of their own; each says whether its value is text."""

    name = "deepseek_v32"
    aliases = ("deepseekv32",)
    level = 4
    marks = Marks(f"<{_DSML}function_calls>", f"</{_DSML}function_calls>")
    invoke = f'<{_DSML}invoke name="'
    form = TagForm(
        f'<{_DSML}parameter name="',
        ('">',),
        f"</{_DSML}parameter>",
        f"</{_DSML}invoke>",
        is_exact=True,
    )

    @property
    def example(self) -> str:
        return super().example.replace("<parameter>", f"<parameter>{_IS_TEXT}true|false")

    def fits(self, template: str) -> bool:
        return _DSML in template and "function_calls" in template

    def arguments(self, kinds: Mapping[str, ParamKind]) -> ArgumentReader:
        return _Arguments(self.form, kinds)

    def call_rules(self, i: int, tool: CallableTool, ref: MarkRef) -> Iterator[str]:
        return _Rules(self.form, ref).call(i, tool, f'{self.invoke}{tool.name}">\n')


class _Arguments(TaggedArguments):
    def named(self, tag: str) -> tuple[str, ParamKind | None]:
        """What the tag says counts, not the schema."""
        name, _, is_text = tag.partition(_IS_TEXT)
        if not is_text:
            return super().named(name)
        return name, None if is_text == "true" else ParamKind.JSON


class _Rules(TaggedRules):
    def tag(self, name: str, kind: ParamKind | None) -> tuple[str, ParamKind | None]:
        """A text that may be null is written in JSON."""
        if kind is None:
            return f"{name}{_IS_TEXT}true", None
        return f"{name}{_IS_TEXT}false", ParamKind.JSON
