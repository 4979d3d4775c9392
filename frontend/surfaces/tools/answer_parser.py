"""Tells the visible text of an answer apart: reasoning, content, and calls of tools."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

from frontend.parsers.answer_parsers import AnswerParsers
from frontend.parsers.calls.call_head import CallHead, Head, ListEnd
from frontend.parsers.calls.json_span import SPACE, skip_space
from frontend.parsers.calls.marks import possible_mark
from frontend.parsers.calls.tool_parser import ArgumentReader, JsonArguments, Tail
from shared.protocol.reply import AnswerFormat


@dataclass(slots=True)
class CallDelta:
    """News of one call. The first of a call has its name."""

    idx: int
    name: str = ""
    arguments: str = ""  # as the model wrote them


@dataclass(slots=True)
class TextDelta:
    """News of what the model says, or of what it thinks before."""

    text: str
    is_reasoning: bool = False


@dataclass(slots=True)
class AnswerDelta:
    """What new text adds to an answer, in the order of the text."""

    parts: list[TextDelta | CallDelta] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.parts)

    @property
    def reasoning(self) -> str:
        return self._texts(is_reasoning=True)

    @property
    def content(self) -> str:
        return self._texts(is_reasoning=False)

    @property
    def calls(self) -> list[CallDelta]:
        return [part for part in self.parts if isinstance(part, CallDelta)]

    def tell(self, text: str, *, is_reasoning: bool) -> None:
        """More text of one kind."""
        if not text:
            return
        last = self.parts[-1] if self.parts else None
        if isinstance(last, TextDelta) and last.is_reasoning is is_reasoning:
            last.text += text
        else:
            self.parts.append(TextDelta(text, is_reasoning))

    def tell_arguments(self, idx: int, text: str) -> None:
        """More of a call's arguments."""
        last = self.parts[-1] if self.parts else None
        if isinstance(last, CallDelta) and last.idx == idx:
            last.arguments += text
        else:
            self.parts.append(CallDelta(idx, arguments=text))

    def _texts(self, *, is_reasoning: bool) -> str:
        return "".join(
            part.text
            for part in self.parts
            if isinstance(part, TextDelta) and part.is_reasoning is is_reasoning
        )


class AnswerParser:
    """One state machine for streamed and whole answers.

    What it has told depends on the text so far, never on how that was cut into pieces. Text that
    may become a mark or the head of a call is not read yet: `num_read` and `checksum` describe
    what was. A reader that was told of the first `num_told` characters hears of what follows them
    only: the parser goes over the text again and stays silent until there.
    """

    def __init__(self, answer: AnswerFormat, *, num_told: int = 0) -> None:
        self._answer = answer
        self._parser, self._thought = AnswerParsers.of(answer)
        self._num_told = num_told
        self._text = ""  # not read yet
        self.num_read = 0
        self.checksum = 0
        self._delta = AnswerDelta()
        self._num_calls = 0
        self._call: CallHead | None = None  # the last one
        self._arguments: ArgumentReader = JsonArguments()
        self._tail: Tail | None = None
        self._at = 0  # in `_text`: everything before it has been read
        self.has_thought = answer.begins_in_reasoning
        self._state: Callable[[], bool] = self._begin_body
        if self._thought is not None:
            self._state = self._begin_reasoning if answer.begins_in_reasoning else self._begin

    def feed(self, text: str) -> AnswerDelta:
        """Read more text."""
        self._text += text
        while self._at < len(self._text) and self._state():
            pass
        return self._told()

    def finish(self, *, is_cut: bool) -> AnswerDelta:
        """No more text comes. `is_cut`: not because the model had said all."""
        if (is_cut and self._has_open_head) or self._state == self._in_arguments:
            self._at = len(self._text)
        if self.is_thinking:
            self._tell_reasoning(len(self._text))
        else:
            self._tell_content(len(self._text))
        return self._told()

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

    @property
    def has_complete_calls(self) -> bool:
        """Whether there are calls, all of them with whole arguments."""
        return self._num_calls > 0 and self._state != self._in_arguments

    def _told(self) -> AnswerDelta:
        read, self._text = self._text[: self._at], self._text[self._at :]
        self.num_read += len(read)
        self.checksum = zlib.crc32(read.encode(), self.checksum)
        self._at = 0
        delta, self._delta = self._delta, AnswerDelta()
        return delta

    # The states. Each reads what it can decide, and returns whether to go on at once: False when
    # more text is needed.

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
            self._tell_reasoning(self._before_space(may_end))
            return False
        end, mark = min(found)
        self._tell_reasoning(self._before_space(end))
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
        """A call, or content, or nobody can tell yet."""
        if head is None:
            return False
        if isinstance(head, CallHead):
            self._begin_call(head)
        else:
            self._state = self._in_text
        return True

    def _in_content(self) -> bool:
        self._tell_content(len(self._text))
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
            self._tell_content(self._before_space(possible_mark(self._text, self._at, mark)))
            return False
        self._tell_content(self._before_space(begin))
        head = self._head_at(begin + len(mark))
        if head is None:
            return False
        if isinstance(head, CallHead):
            self._begin_call(head)
        else:
            self._tell_content(begin + len(mark))
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
        call = CallDelta(self._num_calls, head.name, head.arguments or "")
        self._num_calls += 1
        self._at = head.at
        self._call = head
        if self.num_read + head.at > self._num_told:
            self._delta.parts.append(call)
        if head.arguments is not None:
            self._end_arguments()
            return
        self._arguments = self._parser.arguments(self._answer.param_kinds.get(head.name, {}))
        self._state = self._in_arguments

    def _in_arguments(self) -> bool:
        begin = self._at
        told, self._at = self._arguments.read(self._text, begin)
        has_read = bool(told)
        if self._arguments.is_verbatim:
            told = self._untold(begin, self._at)
        elif self.num_read + self._at <= self._num_told:
            told = ""
        if told:
            self._delta.tell_arguments(self._num_calls - 1, told)
        if self._arguments.is_closed:
            self._end_arguments()
        return has_read

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

    # What is told of the text from `_at` on, to an end.

    def _tell_content(self, end: int) -> None:
        self._delta.tell(self._untold(self._at, end), is_reasoning=False)
        self._at = end

    def _tell_reasoning(self, end: int) -> None:
        if not self._answer.hides_reasoning:
            self._delta.tell(self._untold(self._at, end), is_reasoning=True)
        self._at = end

    def _untold(self, begin: int, end: int) -> str:
        return self._text[max(begin, self._num_told - self.num_read) : end]

    def _before_space(self, end: int) -> int:
        """Where the white space before `end` begins; not before what has been read."""
        while end > self._at and self._text[end - 1] in SPACE:
            end -= 1
        return end
