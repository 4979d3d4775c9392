"""Grammars of answers that call tools, in llguidance's dialect of Lark."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

import msgspec

from frontend.fields.grammar_fields import MAX_GRAMMAR_BYTES
from frontend.fields.sampling_fields import Sampling
from frontend.fields.structural_tag import ANY_TEXT, tag_rules
from frontend.models.model_directory import ServedModel
from frontend.parsers.answer_parsers import AnswerParsers
from frontend.parsers.calls.lark_json import json_rule
from frontend.surfaces.tools.answer_styles import mark_ids
from frontend.surfaces.tools.tool_fields import ToolUse
from shared.errors import InvalidRequest, UnsupportedParameter
from shared.grammar import grammar_engine
from shared.protocol.reply import AnswerFormat
from shared.protocol.sampling import Grammar, GrammarKind


class ToolGrammar:
    """Writes the grammar of one request.

    A mark that is a token of the vocabulary is asked for as that token: free text cannot hold it,
    so that a call begins exactly there.
    """

    def __init__(self, use: ToolUse, answer: AnswerFormat, token_ids: Mapping[str, int]) -> None:
        tools, self._reasoning = AnswerParsers.of(answer)
        assert tools is not None
        self._use = use
        self._answer = answer
        self._parser = tools
        self._token_ids = token_ids  # of marks that are tokens

    def grammar(self, content: Grammar | None) -> Grammar:
        """`content`: what an answer without calls must be. Raises InvalidRequest."""
        if content is not None and self._parser.is_bare:
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
        yield f"FREE: {ANY_TEXT}"
        yield r"SPACE: /[ \t\r\n]*/"
        yield f"body: {self._body(content)}"
        yield from self._leads()
        is_single = self._use.is_single
        yield f"calls: {self._parser.calls_rule(self._mark_ref, is_single=is_single)}"
        yield "call: " + " | ".join(f"call_{i}" for i in range(len(self._use.callable)))
        for i, tool in enumerate(self._use.callable):
            yield from self._parser.call_rules(i, tool, self._mark_ref)
        if content is not None:
            yield from self._content_rules(content)
        if self._parser.is_bare:
            yield f"NO_CALL: {self._parser.no_call}"

    def _body(self, content: Grammar | None) -> str:
        parser = self._parser
        head = self._mark_ref(parser.content_head)
        if self._use.is_required or content is not None:
            begin = "" if parser.is_bare else self._mark_ref(parser.marks.begin)
            calls = f"{begin} calls".strip()
            if content is None:
                return calls
            is_token = parser.marks.begin in self._token_ids
            may_speak = content.kind is GrammarKind.LARK and is_token and not head
            spoken = f"content ({calls})?" if may_speak else "content"
            return f"{head} {spoken} | {calls}".strip()
        if head:
            return f"{head} FREE | {self._mark_ref(parser.marks.begin)} calls"
        bare = ["NO_CALL", "calls"] if parser.is_bare else ["FREE"]
        marked = ["lead calls"] if parser.marks.begin else []
        if marked and parser.goes_on and not self._use.is_single:
            marked = ["lead calls FREE"]
        return " | ".join(bare + marked)

    def _content_rules(self, content: Grammar) -> Iterator[str]:
        """Raises UnsupportedParameter."""
        if content.kind is GrammarKind.LARK:  # of a structural tag
            begin = self._parser.marks.begin
            yield from tag_rules(content.text, "content", "" if begin in self._token_ids else begin)
        elif content.kind is GrammarKind.JSON_SCHEMA:
            yield f"content: %json {json_rule(json.loads(content.text))}"
        else:
            raise UnsupportedParameter(
                "tools",
                f"beside a {content.kind.value} is not supported, only beside a JSON schema and a "
                "structural tag",
            )

    def _thought(self) -> str:
        """What comes before the body."""
        if self._reasoning is None:
            return ""
        begin = self._mark_ref(self._reasoning.begins[0])
        thought = f"thought SPACE {self._mark_ref(self._reasoning.behind_end)}".rstrip()
        if self._answer.begins_in_reasoning:
            return thought
        return f"{begin}? {thought}" if self._reasoning.is_implied else f"({begin} {thought})?"

    def _leads(self) -> Iterator[str]:
        """Free text up to a mark, with the mark."""
        if self._reasoning is not None:
            yield self._lead("thought", self._reasoning.ends[0])
        has_head = bool(self._parser.content_head)
        if not self._use.is_required and self._parser.marks.begin and not has_head:
            text = "NO_CALL" if self._parser.is_bare else "FREE"
            yield self._lead("lead", self._parser.marks.begin, text)

    def _lead(self, name: str, mark: str, text: str = "FREE") -> str:
        if mark in self._token_ids:
            return f"{name}: {text} {self._mark_ref(mark)}"
        return f"{name}[suffix={json.dumps(mark)}]: {text}"

    def _mark_ref(self, text: str) -> str:
        """A mark, or a text with marks in it; "" of none."""
        return " ".join(
            f"<[{self._token_ids[piece]}]>" if piece in self._token_ids else json.dumps(piece)
            for piece in self._pieces(text)
        )

    def _pieces(self, text: str) -> list[str]:
        if not self._token_ids:
            return [text] if text else []
        marks = "|".join(map(re.escape, sorted(self._token_ids, key=len, reverse=True)))
        return [piece for piece in re.split(f"({marks})", text) if piece]


def with_answer(
    sampling: Sampling, answer: AnswerFormat | None, use: ToolUse | None, model: ServedModel
) -> Sampling:
    """The sampling with the grammar of the calls, and the marks as visible text. Raises
    InvalidRequest.
    """
    if answer is None:
        return sampling
    token_ids = mark_ids(AnswerParsers.of(answer), model.text.tokenizer)
    shown_ids = dict.fromkeys((*sampling.text.shown_ids, *token_ids.values()))
    text = msgspec.structs.replace(sampling.text, shown_ids=tuple(shown_ids))
    sampling = msgspec.structs.replace(sampling, text=text)
    content = sampling.params.grammar
    if use is None or not (use.is_constrained or content):
        return sampling
    if content is not None and use.is_required:
        raise InvalidRequest(
            f"'{sampling.grammar_param}' and a required tool exclude each other",
            param=sampling.grammar_param,
        )
    grammar = ToolGrammar(use, answer, token_ids).grammar(content)
    params = msgspec.structs.replace(sampling.params, grammar=grammar)
    return msgspec.structs.replace(sampling, params=params, grammar_param="tools")
