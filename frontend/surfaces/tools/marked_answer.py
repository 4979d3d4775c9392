"""The visible text of an answer, split by marks: those of reasoning, and those of calls."""

from __future__ import annotations

from frontend.parsers.answer_parsers import AnswerParsers
from frontend.parsers.calls.call_head import CallHead, Head, ListEnd
from frontend.parsers.calls.json_span import SPACE, skip_space
from frontend.parsers.calls.marks import possible_mark
from frontend.parsers.calls.tool_parser import Tail
from frontend.surfaces.tools.answer_parser import AnswerParser
from shared.protocol.reply import AnswerFormat


class MarkedAnswer(AnswerParser):
    """An answer whose reasoning and calls stand between marks, amid content."""

    def __init__(self, answer: AnswerFormat, *, num_emitted: int = 0) -> None:
        self._parser, self._thought = AnswerParsers.of(answer)
        begin = self._begin_body
        if self._thought is not None:
            begin = self._begin_reasoning if answer.begins_in_reasoning else self._begin
        super().__init__(answer, num_emitted, begin)
        self._call: CallHead | None = None  # the last one
        self._tail: Tail | None = None

    def _end(self, *, is_cut: bool) -> None:
        if (is_cut and self._has_open_head) or self._state == self._in_arguments:
            self._at = len(self._text)
        if self.is_thinking:
            self._emit_reasoning(len(self._text))
        else:
            self._emit_content(len(self._text))

    @property
    def _has_open_head(self) -> bool:
        """Whether a call has begun of which there is not even the name."""
        if self._answer.is_calls_alone and not self.is_thinking:
            return True
        if self._state == self._in_text and self._begin_mark:
            return self._begin_mark in self._text[self._at :]
        return self._state == self._after_call

    @property
    def is_thinking(self) -> bool:
        """Whether the model has not said what ends its reasoning."""
        if self._state == self._begin:
            return self._thought is not None and self._thought.is_implied
        return self._state in (self._begin_reasoning, self._in_reasoning)

    # The states.

    def _begin(self) -> bool:
        """Before anything: does it think?"""
        assert self._thought is not None
        at = skip_space(self._text, self._at)
        for mark in self._thought.begins:
            if self._text.startswith(mark, at):
                self._at = at + len(mark)
                self.has_thought = True
                self._state = self._begin_reasoning
                return True
        if any(mark.startswith(self._text[at:]) for mark in self._thought.begins):
            return False
        self.has_thought = self._thought.is_implied
        self._state = self._begin_reasoning if self.has_thought else self._begin_body
        return True

    def _begin_reasoning(self) -> bool:
        self._at = skip_space(self._text, self._at)
        if self._at == len(self._text):
            return False
        self._state = self._in_reasoning
        return True

    def _in_reasoning(self) -> bool:
        assert self._thought is not None
        marks = self._thought.ends
        found = [(end, mark) for mark in marks if (end := self._text.find(mark, self._at)) >= 0]
        if not found:
            may_end = min(possible_mark(self._text, self._at, mark) for mark in marks)
            self._emit_reasoning(self._before_space(may_end))
            return False
        end, mark = min(found)
        self._emit_reasoning(self._before_space(end))
        self._at = end + len(mark)
        self._state = self._after_reasoning
        return True

    def _after_reasoning(self) -> bool:
        self._at = skip_space(self._text, self._at)
        if self._at == len(self._text):
            return False
        self._state = self._begin_body
        return True

    def _begin_body(self) -> bool:
        if self._parser is None:
            self._state = self._in_content
            return True
        head = self._parser.at_start(self._text, self._at, self._answer.tool_names)
        return self._go_on_with(head)

    def _go_on_with(self, head: Head) -> bool:
        """A call, or content, or not decided yet."""
        if head is None:
            return False
        if isinstance(head, CallHead):
            self._begin_call(head)
        else:
            self._state = self._in_text
        return True

    def _in_content(self) -> bool:
        self._emit_content(len(self._text))
        return False

    @property
    def _begin_mark(self) -> str:
        return "" if self._parser is None else self._parser.marks.begin

    def _in_text(self) -> bool:
        """Content, up to a mark behind which there is a call."""
        mark = self._begin_mark
        if not mark:
            return self._in_content()
        begin = self._text.find(mark, self._at)
        if begin < 0:
            self._emit_content(self._before_space(possible_mark(self._text, self._at, mark)))
            return False
        self._emit_content(self._before_space(begin))
        head = self._head_at(begin + len(mark))
        if head is None:
            return False
        if isinstance(head, CallHead):
            self._begin_call(head)
        else:
            self._emit_content(begin + len(mark))
        return True

    def _head_at(self, at: int) -> Head:
        """What stands behind a mark."""
        assert self._parser is not None
        at = skip_space(self._text, at)
        if at == len(self._text):
            return None
        return self._parser.behind_mark(self._text, at, self._answer.tool_names)

    def _begin_call(self, head: CallHead) -> None:
        assert self._parser is not None
        self._call = head
        kinds = self._answer.param_kinds.get(head.name, {})
        self._open_call(head.name, head.at, head.arguments, self._parser.arguments(kinds))

    def _end_arguments(self) -> None:
        assert self._parser is not None
        assert self._call is not None
        self._tail = self._parser.tail(self._call)
        self._state = self._after_call if self._tail is None else self._in_tail

    def _in_tail(self) -> bool:
        """Behind arguments: what is left of the call says nothing."""
        assert self._tail is not None
        self._at = self._tail.walk(self._text, self._at)
        if self._tail.is_closed:
            self._state = self._after_call
        return self._tail.is_closed

    def _after_call(self) -> bool:
        """White space is dropped; then comes another call, or content."""
        assert self._parser is not None
        assert self._call is not None
        at = self._at = skip_space(self._text, self._at)
        if at == len(self._text):
            return False
        names, in_list = self._answer.tool_names, self._call.in_list
        head = self._parser.behind_call(self._text, at, names, in_list=in_list)
        if isinstance(head, ListEnd):
            self._at = head.at
            self._call = self._call._replace(in_list=False)
            return True
        return self._go_on_with(head)

    def _before_space(self, end: int) -> int:
        """Where the white space before `end` begins; not before what has been read."""
        while end > self._at and self._text[end - 1] in SPACE:
            end -= 1
        return end
