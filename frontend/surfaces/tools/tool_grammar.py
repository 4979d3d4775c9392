"""Grammars of answers that call tools, in llguidance's dialect of Lark."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from frontend.fields.grammar_fields import MAX_GRAMMAR_BYTES
from frontend.models.tool_marks import ARGS, REASONING_MARKS, TOOL_MARKS
from frontend.surfaces.tools.lark_json import json_rule
from frontend.surfaces.tools.tagged_grammar import tagged_call_rules
from frontend.surfaces.tools.tool_fields import Tool, ToolUse
from shared.errors import InvalidRequest, UnsupportedParameter
from shared.grammar.grammar_source import grammar_engine
from shared.protocol.reply import AnswerFormat, ToolStyle
from shared.protocol.sampling import Grammar, GrammarKind

_BARE = (ToolStyle.LLAMA3, ToolStyle.JSON)
# Text without a call; where calls have no mark, what begins like one is one.
_ANY = r"/(.|\n)*/"
_NO_JSON = {
    ToolStyle.LLAMA3: r"/([ \t\r\n]*[^ \t\r\n{](.|\n)*)?/",
    ToolStyle.JSON: r"/([ \t\r\n]*[^ \t\r\n{\[](.|\n)*)?/",
}


class ToolGrammar:
    """Writes the grammar of one request.

    A mark that is a token of the vocabulary is asked for as that token: free text cannot hold it,
    so that a call begins exactly there.
    """

    def __init__(self, use: ToolUse, answer: AnswerFormat, token_ids: Mapping[str, int]) -> None:
        assert answer.tools is not None
        self._use = use
        self._answer = answer
        self._style = answer.tools
        self._mark = TOOL_MARKS[answer.tools]
        self._token_ids = token_ids  # of marks that are tokens

    def grammar(self, content: Grammar | None) -> Grammar:
        """`content`: what an answer without calls must be. Raises InvalidRequest."""
        if content is not None and self._style in _BARE:
            raise UnsupportedParameter(
                "tools",
                "is not supported beside a response format for this model: its calls have no mark "
                "that tells them from JSON",
            )
        text = "\n".join(["%llguidance {}", *self._rules(content)]) + "\n"
        num_bytes = len(text.encode())
        if num_bytes > MAX_GRAMMAR_BYTES:
            raise InvalidRequest(
                f"'tools' make a grammar of {num_bytes} bytes, at most {MAX_GRAMMAR_BYTES}",
                param="tools",
            )
        return Grammar(GrammarKind.LARK, text, grammar_engine())

    def _rules(self, content: Grammar | None) -> Iterator[str]:
        yield f"start: {self._thought()} body"
        yield f"FREE: {_ANY}"
        yield r"SPACE: /[ \t\r\n]*/"
        yield f"body: {self._body(content)}"
        yield from self._leads()
        yield f"calls: {self._calls()}"
        yield "call: " + " | ".join(f"call_{i}" for i in range(len(self._use.callable)))
        for i, tool in enumerate(self._use.callable):
            if self._style is ToolStyle.QWEN3_CODER:
                yield from tagged_call_rules(i, tool)
            else:
                yield f"call_{i}: {self._call(i, tool)}"
                yield f"arguments_{i}: %json {json_rule(tool.schema())}"
        if content is not None:
            yield f"content: %json {json_rule(_schema_of(content))}"
        if self._style in _BARE:
            yield f"NO_JSON: {_NO_JSON[self._style]}"

    def _body(self, content: Grammar | None) -> str:
        if self._use.is_required or content is not None:
            begin = self._mark_ref(self._mark.begin) if self._style not in _BARE else ""
            calls = f"{begin} calls".strip()
            return calls if content is None else f"content | {calls}"
        match self._style:
            case ToolStyle.JSON:
                return "NO_JSON | calls"
            case ToolStyle.LLAMA3:
                return "NO_JSON | calls | lead calls"
            case ToolStyle.MISTRAL | ToolStyle.MISTRAL_ARGS:
                return "FREE | lead calls"
            case ToolStyle.HERMES | ToolStyle.QWEN3_CODER:
                return "FREE | lead calls FREE" if not self._use.is_single else "FREE | lead calls"

    def _calls(self) -> str:
        """Behind the first mark, where the style has one."""
        is_single = self._use.is_single
        begin = self._mark_ref(self._mark.begin)
        match self._style:
            case ToolStyle.HERMES | ToolStyle.QWEN3_CODER:
                one = f'"\\n" call "\\n" {self._mark_ref(self._mark.end)}'
                return one if is_single else f'{one} ("\\n" {begin} {one})*'
            case ToolStyle.LLAMA3:
                return "call" if is_single else 'call ("; " call)*'
            case ToolStyle.MISTRAL:
                return '"[" call "]"' if is_single else '"[" call (", " call)* "]"'
            case ToolStyle.MISTRAL_ARGS:
                return "call" if is_single else f"call ({begin} call)*"
            case ToolStyle.JSON:
                return "call" if is_single else 'call | "[" call (", " call)* "]"'

    def _call(self, i: int, tool: Tool) -> str:
        if self._style is ToolStyle.MISTRAL_ARGS:
            return f"{json.dumps(tool.name)} {self._mark_ref(ARGS)} arguments_{i}"
        key = "parameters" if self._style is ToolStyle.LLAMA3 else "arguments"
        head = f'{{"name": {json.dumps(tool.name)}, "{key}": '
        return f'{json.dumps(head)} arguments_{i} "}}"'

    def _thought(self) -> str:
        """What comes before the body."""
        if self._answer.reasoning is None:
            return ""
        begin = self._mark_ref(REASONING_MARKS[self._answer.reasoning].begin)
        thought = "thought SPACE"
        return thought if self._answer.begins_in_reasoning else f"({begin} {thought})?"

    def _leads(self) -> Iterator[str]:
        """Free text up to a mark, with the mark."""
        if self._answer.reasoning is not None:
            yield self._lead("thought", REASONING_MARKS[self._answer.reasoning].end)
        if not self._use.is_required and self._style is not ToolStyle.JSON:
            text = "NO_JSON" if self._style in _BARE else "FREE"
            yield self._lead("lead", self._mark.begin, text)

    def _lead(self, name: str, mark: str, text: str = "FREE") -> str:
        if mark in self._token_ids:
            return f"{name}: {text} {self._mark_ref(mark)}"
        return f"{name}[suffix={json.dumps(mark)}]: {text}"

    def _mark_ref(self, mark: str) -> str:
        if mark in self._token_ids:
            return f"<[{self._token_ids[mark]}]>"
        return json.dumps(mark)


def _schema_of(content: Grammar) -> dict[str, object]:
    if content.kind is not GrammarKind.JSON_SCHEMA:
        raise UnsupportedParameter(
            "tools", f"beside a {content.kind.value} is not supported, only beside a JSON schema"
        )
    schema: dict[str, object] = json.loads(content.text)
    return schema
