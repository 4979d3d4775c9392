"""The output of a response: items, a function of the visible text and the finish alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from frontend.jobs.stored_response import StoredResponse
from frontend.surfaces.responses.output_items import ItemKind, OutputItem
from frontend.surfaces.responses.response_answer import ResponseItem
from frontend.surfaces.tools.answer_machines import answer_parser
from frontend.surfaces.tools.answer_parser import CallDelta, TextDelta
from frontend.surfaces.tools.calls import call_id
from frontend.text.logprob_view import TokenLogprobView
from shared.protocol.finish import Finish, FinishReason

_Logprobs = list[TokenLogprobView]


class Opened(NamedTuple):
    """An item has begun."""

    item: OutputItem


class Grown(NamedTuple):
    """More of an item."""

    item: OutputItem
    text: str
    logprobs: _Logprobs


class Closed(NamedTuple):
    """No more of an item comes."""

    item: OutputItem


Change = Opened | Grown | Closed


class OutputParser:
    """Items follow each other as the text does: where something else begins, an item ends.

    However the text is cut into pieces, the items are the same. Logprobs go with the last item
    that a piece adds to, so that they depend on the cut; where they are wanted, pieces are tokens.
    """

    def __init__(self, record: StoredResponse, logprobs: Callable[[slice], _Logprobs]) -> None:
        """`logprobs` are those of output tokens; empty when nobody asked for them."""
        self._rid = record.rid
        self._answer = answer = record.reply.answer
        self._style = None if answer is None else answer.tools
        self._parser = None if answer is None else answer_parser(answer)
        self._logprobs = logprobs
        self._num_emitted = 0  # tokens
        self._num_thought = 0  # tokens, up to the end of the piece with the closing mark
        self.items: list[OutputItem] = []

    def add(self, text: str, num_tokens: int) -> list[Change]:
        """More text, up to the end of so many tokens of the output."""
        if self._parser is None:
            return self._changes([TextDelta(text)] if text else [], num_tokens)
        has_thought = self._has_thought
        parts = self._parser.feed(text).parts
        if not has_thought:
            self._num_thought = num_tokens
        return self._changes(parts, num_tokens)

    def finish(self, finish: Finish, num_tokens: int) -> list[Change]:
        """No more text comes: what was held back, and the end of the last item."""
        is_stop = finish.reason is FinishReason.STOP
        changes: list[Change] = []
        if self._parser is not None:
            if not self._has_thought:
                self._num_thought = num_tokens
            changes += self._changes(self._parser.finish(is_cut=not is_stop).parts, num_tokens)
        if not self.items and finish.reason in (FinishReason.STOP, FinishReason.LENGTH):
            changes += self._open(ItemKind.MESSAGE)
        if self.items:
            last = self.items[-1]
            last.logprobs += self._take_logprobs(last, num_tokens)
            last.is_whole = is_stop
            if last.kind is ItemKind.CALL and self._parser is not None:
                last.is_whole = self._parser.has_complete_calls
            changes.append(Closed(last))
        return changes

    def num_reasoning_tokens(self, token_ids: list[int]) -> int:
        """All up to the closing mark, marks included.

        Where that is no token of its own, those of the pieces in which it came.
        """
        if self._answer is None or self._parser is None or not self._parser.has_thought:
            return 0
        end_id = self._answer.reasoning_end_id
        if self._has_thought and end_id is not None and end_id in token_ids:
            return token_ids.index(end_id) + 1
        return self._num_thought

    @property
    def _has_thought(self) -> bool:
        """Whether it thought, and does no more."""
        parser = self._parser
        return parser is not None and parser.has_thought and not parser.is_thinking

    def views(self) -> list[ResponseItem]:
        return [item.view() for item in self.items]

    def _changes(self, parts: list[TextDelta | CallDelta], num_tokens: int) -> list[Change]:
        changes: list[Change] = []
        for i, part in enumerate(parts):
            changes += self._opened_for(part)
            item = self.items[-1]
            text = part.arguments if isinstance(part, CallDelta) else part.text
            is_last = i == len(parts) - 1
            logprobs = self._take_logprobs(item, num_tokens) if is_last else []
            if text:
                item.texts.append(text)
                item.logprobs += logprobs
                changes.append(Grown(item, text, logprobs))
        return changes

    def _opened_for(self, part: TextDelta | CallDelta) -> Iterable[Change]:
        if isinstance(part, CallDelta):
            return self._open(ItemKind.CALL, part) if part.name else ()
        kind = ItemKind.REASONING if part.is_reasoning else ItemKind.MESSAGE
        return () if self.items and self.items[-1].kind is kind else self._open(kind)

    def _open(self, kind: ItemKind, call: CallDelta | None = None) -> Iterable[Change]:
        if self.items:
            self.items[-1].is_whole = True
            yield Closed(self.items[-1])
        idx = len(self.items)
        item = OutputItem(kind, idx, f"{kind.value}_{self._rid}" + (f"_{idx}" if idx else ""))
        if call is not None:
            item.name, item.call_id = call.name, call_id(self._rid, call.idx, self._style)
        self.items.append(item)
        yield Opened(item)

    def _take_logprobs(self, item: OutputItem, num_tokens: int) -> _Logprobs:
        """Takes those of tokens that no item has yet; only messages show them."""
        tokens, self._num_emitted = slice(self._num_emitted, num_tokens), num_tokens
        return self._logprobs(tokens) if item.kind is ItemKind.MESSAGE else []
