"""How the models' answers are to be read: as their chat templates say, or as flags do."""

from __future__ import annotations

from collections.abc import Mapping

from tokenizers import Tokenizer

from frontend.models.chat_template import ChatTemplate
from frontend.models.model_directory import ServedModel
from frontend.parsers.answer_parsers import AnswerParsers
from frontend.parsers.calls.tagged_calls import param_kinds
from frontend.parsers.calls.tool_parser import ToolParser
from frontend.parsers.chosen import chosen_parsers
from frontend.parsers.plug_in import chosen_reasoning_parser, chosen_tool_parser
from frontend.parsers.reasoning import ReasoningParser
from frontend.surfaces.tools.tool_fields import ToolUse
from shared.errors import InvalidRequest, UnsupportedParameter
from shared.protocol.reply import AnswerFormat, ParamKind
from shared.protocol.role_cards import ChosenParsers

MAX_KINDS = 2048  # parameters whose kinds travel with every record of the request
MAX_KIND_BYTES = 64 * 1024  # of their names
_TAIL_LEN = 16  # tokens in which the end of a prompt shows


class AnswerStyles:
    """The parsers of a frontend's models."""

    def __init__(self, tool_parser: str = "auto", reasoning_parser: str = "auto") -> None:
        """Raises ConfigError for names that nothing here has, and files that do not fit."""
        self._tool_parser = None if tool_parser == "auto" else chosen_tool_parser(tool_parser)
        self._reads_templates = reasoning_parser == "auto"
        has_own = reasoning_parser not in ("auto", "none")
        self._reasoning_parser = chosen_reasoning_parser(reasoning_parser) if has_own else None

    def chosen(self, template: str | None) -> ChosenParsers:
        """The style for a model whose chat template has this source; None: it has none."""
        own = self._reasoning_parser
        reasoning = "none" if own is None else own.name
        return chosen_parsers(
            template,
            None if self._tool_parser is None else self._tool_parser.name,
            "auto" if self._reads_templates else reasoning,
        )

    def tools(self, template: ChatTemplate) -> ToolParser:
        """Raises UnsupportedParameter."""
        if self._tool_parser is not None:
            return self._tool_parser
        if template.tool_parser is None:
            raise UnsupportedParameter(
                "tools",
                "is not supported for this model: its chat template has calls in a form that is "
                "not known here (--tool-parser chooses one of those that are)",
            )
        return template.tool_parser

    def reasoning(self, template: ChatTemplate) -> ReasoningParser | None:
        return template.reasoning_parser if self._reads_templates else self._reasoning_parser

    def answer_format(
        self,
        model: ServedModel,
        use: ToolUse | None,
        prompt_ids: list[int],
        *,
        separates_reasoning: bool,
    ) -> AnswerFormat | None:
        """None when all that the model says is content.

        Raises UnsupportedParameter or InvalidRequest.
        """
        template = model.chat_template()
        reasoning = self.reasoning(template) if separates_reasoning else None
        if use is None and reasoning is None:
            return None
        is_inside, end_id = False, None
        if reasoning is not None:
            is_inside = begins_in_reasoning(reasoning, model.text.tokenizer, prompt_ids)
            end_id = _end_id(reasoning, model.text.tokenizer)
        tools = None if use is None else self.tools(template)
        kinds = {}
        if use is not None and tools is not None and tools.reads_kinds:
            kinds = {tool.name: param_kinds(tool.parameters) for tool in use.callable}
            _check_kinds(kinds)
        return AnswerFormat(
            tools=None if tools is None else tools.name,
            tool_names=() if use is None else tuple(tool.name for tool in use.callable),
            reasoning=None if reasoning is None else reasoning.name,
            begins_in_reasoning=is_inside,
            reasoning_end_id=end_id,
            param_kinds=kinds,
            is_calls_alone=use is not None and use.is_required,
        )


def _check_kinds(kinds: Mapping[str, Mapping[str, ParamKind]]) -> None:
    """Raises InvalidRequest."""
    num_kinds = sum(map(len, kinds.values()))
    num_bytes = sum(len(name.encode()) for of_tool in kinds.values() for name in of_tool)
    if num_kinds > MAX_KINDS or num_bytes > MAX_KIND_BYTES:
        raise InvalidRequest(
            f"'tools' have {num_kinds} parameters that take more than text, with names of "
            f"{num_bytes} bytes; of this model's at most {MAX_KINDS} and {MAX_KIND_BYTES}",
            param="tools",
        )


def begins_in_reasoning(
    parser: ReasoningParser, tokenizer: Tokenizer, prompt_ids: list[int]
) -> bool:
    """Whether a prompt ends with the opening mark."""
    tail = str(tokenizer.decode(prompt_ids[-_TAIL_LEN:], skip_special_tokens=False))
    return tail.rstrip().endswith(parser.begins)


def _end_id(parser: ReasoningParser, tokenizer: Tokenizer) -> int | None:
    """The token that is the closing mark, where it is one."""
    ids = [tokenizer.token_to_id(end) for end in parser.ends]
    return ids[0] if len(ids) == 1 else None


def mark_ids(parsers: AnswerParsers, tokenizer: Tokenizer) -> Mapping[str, int]:
    """The marks that are tokens of the vocabulary."""
    marks = [mark for parser in parsers if parser is not None for mark in parser.shown_marks]
    ids = {mark: tokenizer.token_to_id(mark) for mark in marks}
    return {mark: token_id for mark, token_id in ids.items() if token_id is not None}
