"""How the models' answers are to be read: as their chat templates say, or as flags do."""

from __future__ import annotations

from collections.abc import Mapping

from tokenizers import Tokenizer

from frontend.models.chat_template import ChatTemplate
from frontend.models.model_directory import ServedModel
from frontend.models.tagged_arguments import param_kinds
from frontend.models.tool_marks import REASONING_MARKS, marks_in_text
from frontend.surfaces.tools.tool_fields import ToolUse
from shared.errors import UnsupportedParameter
from shared.protocol.reply import AnswerFormat, ReasoningStyle, ToolStyle

_TAIL_LEN = 16  # tokens in which the end of a prompt shows


class AnswerStyles:
    """The styles of a frontend's models."""

    def __init__(self, tool_parser: str = "auto", reasoning_parser: str = "auto") -> None:
        self._tool_parser = tool_parser
        self._reasoning_parser = reasoning_parser

    def tools(self, template: ChatTemplate) -> ToolStyle:
        """Raises UnsupportedParameter."""
        if self._tool_parser != "auto":
            return ToolStyle(self._tool_parser)
        if template.tool_style is None:
            raise UnsupportedParameter(
                "tools",
                "is not supported for this model: its chat template has calls in a form that is "
                "not known here (--tool-parser chooses one of those that are)",
            )
        return template.tool_style

    def reasoning(self, template: ChatTemplate) -> ReasoningStyle | None:
        match self._reasoning_parser:
            case "auto":
                return template.reasoning_style
            case "none":
                return None
            case name:
                return ReasoningStyle(name)

    def answer_format(
        self,
        model: ServedModel,
        use: ToolUse | None,
        prompt_ids: list[int],
        *,
        tells_reasoning: bool,
    ) -> AnswerFormat | None:
        """None when all that the model says is content. Raises UnsupportedParameter."""
        template = model.chat_template()
        reasoning = self.reasoning(template) if tells_reasoning else None
        if use is None and reasoning is None:
            return None
        is_inside, end_id = False, None
        if reasoning is not None:
            is_inside = begins_in_reasoning(reasoning, model.text.tokenizer, prompt_ids)
            end_id = model.text.tokenizer.token_to_id(REASONING_MARKS[reasoning].end)
        style = None if use is None else self.tools(template)
        kinds = {}
        if use is not None and style is ToolStyle.QWEN3_CODER:
            kinds = {tool.name: param_kinds(tool.parameters) for tool in use.callable}
        return AnswerFormat(
            tools=style,
            tool_names=() if use is None else tuple(tool.name for tool in use.callable),
            reasoning=reasoning,
            begins_in_reasoning=is_inside,
            reasoning_end_id=end_id,
            param_kinds=kinds,
        )


def begins_in_reasoning(style: ReasoningStyle, tokenizer: Tokenizer, prompt_ids: list[int]) -> bool:
    """Whether a prompt ends with the opening mark."""
    tail = str(tokenizer.decode(prompt_ids[-_TAIL_LEN:], skip_special_tokens=False))
    return tail.rstrip().endswith(REASONING_MARKS[style].begin)


def mark_ids(
    tools: ToolStyle | None, reasoning: ReasoningStyle | None, tokenizer: Tokenizer
) -> Mapping[str, int]:
    """The marks that are tokens of the vocabulary."""
    ids = {mark: tokenizer.token_to_id(mark) for mark in marks_in_text(tools, reasoning)}
    return {mark: token_id for mark, token_id in ids.items() if token_id is not None}
