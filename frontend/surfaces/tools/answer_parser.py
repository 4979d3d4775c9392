"""Tells the visible text of an answer apart: reasoning, content, and calls of tools."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

from frontend.models.json_span import SPACE, JsonSpan, skip_space
from frontend.models.tagged_arguments import TaggedArguments
from frontend.models.tool_marks import PYTHON_TAG, REASONING_MARKS, TOOL_MARKS
from frontend.surfaces.tools.call_head import CallHead, NoCall, json_head, named_head, tagged_head
from shared.protocol.reply import AnswerFormat, ToolStyle

_BARE = (ToolStyle.LLAMA3, ToolStyle.JSON)


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
        self._num_told = num_told
        self._marks = None if answer.tools is None else TOOL_MARKS[answer.tools]
        self._text = ""  # not read yet
        self.num_read = 0
        self.checksum = 0
        self._delta = AnswerDelta()
        self._num_calls = 0
        self._span = JsonSpan()
        self._tags = TaggedArguments({})
        self._in_list = False
        self._in_object = False
        self._at = 0  # in `_text`: everything before it has been read
        self.has_thought = answer.begins_in_reasoning
        self._state: Callable[[], bool] = self._begin_body
        if answer.reasoning is not None:
            self._thought = REASONING_MARKS[answer.reasoning]
            self._state = self._begin
            if answer.begins_in_reasoning:
                self._state = self._begin_reasoning

    def feed(self, text: str) -> AnswerDelta:
        """Read more text."""
        self._text += text
        while self._at < len(self._text) and self._state():
            pass
        return self._told()

    def finish(self, *, is_cut: bool) -> AnswerDelta:
        """No more text comes. `is_cut`: not because the model had said all."""
        if (is_cut and self._has_open_head) or self._state == self._in_tags:
            self._at = len(self._text)
        if self.is_thinking:
            self._tell_reasoning(len(self._text))
        else:
            self._tell_content(len(self._text))
        return self._told()

    @property
    def _has_open_head(self) -> bool:
        """Whether a call has begun of which there is not even the name."""
        if self._state == self._in_text and self._marks is not None and self._marks.begin:
            return self._marks.begin in self._text[self._at :]
        return self._state == self._after_call

    @property
    def is_thinking(self) -> bool:
        """Whether the model has not said what ends its reasoning."""
        return self._state in (self._begin_reasoning, self._in_reasoning)

    @property
    def has_complete_calls(self) -> bool:
        """Whether there are calls, all of them with whole arguments."""
        return self._num_calls > 0 and self._state not in (self._in_arguments, self._in_tags)

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
        at = skip_space(self._text, self._at)
        mark = self._thought.begin
        if self._text.startswith(mark, at):
            self._at = at + len(mark)
            self.has_thought = True
            self._state = self._begin_reasoning
            return True
        if mark.startswith(self._text[at:]):
            return False
        self._state = self._begin_body
        return True

    def _begin_reasoning(self) -> bool:
        self._at = skip_space(self._text, self._at)
        if self._at == len(self._text):
            return False
        self._state = self._in_reasoning
        return True

    def _in_reasoning(self) -> bool:
        mark = self._thought.end
        end = self._text.find(mark, self._at)
        if end < 0:
            self._tell_reasoning(self._before_space(_possible_mark(self._text, self._at, mark)))
            return False
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
        if self._marks is None:
            self._state = self._in_content
            return True
        if self._answer.tools not in _BARE:
            self._state = self._in_text
            return True
        at = skip_space(self._text, self._at)
        if self._answer.tools is ToolStyle.LLAMA3 and self._text.startswith(PYTHON_TAG, at):
            at = skip_space(self._text, at + len(PYTHON_TAG))
        if at == len(self._text):
            return False
        in_list = self._text[at] == "["
        head = json_head(self._text, at + in_list, self._answer.tool_names)
        if head is None:
            return False
        if isinstance(head, CallHead):
            self._begin_call(head, in_list=in_list)
        elif self._answer.tools is ToolStyle.LLAMA3:
            if PYTHON_TAG.startswith(self._text[at:]):
                return False
            self._state = self._in_text
        else:
            self._state = self._in_content
        return True

    def _in_content(self) -> bool:
        self._tell_content(len(self._text))
        return False

    def _in_text(self) -> bool:
        """Content, up to a mark behind which there is a call."""
        assert self._marks is not None
        mark = self._marks.begin
        if not mark:
            return self._in_content()
        begin = self._text.find(mark, self._at)
        if begin < 0:
            self._tell_content(self._before_space(_possible_mark(self._text, self._at, mark)))
            return False
        before = self._before_space(begin)
        self._tell_content(before)
        head, in_list = self._head_at(begin + len(mark))
        if head is None:
            return False
        if isinstance(head, NoCall):
            self._tell_content(begin + len(mark))
        else:
            self._begin_call(head, in_list=in_list)
        return True

    def _head_at(self, at: int) -> tuple[CallHead | NoCall | None, bool]:
        """The head of the call behind a mark, and whether it stands in a list."""
        at = skip_space(self._text, at)
        if at == len(self._text):
            return None, False
        if self._answer.tools is ToolStyle.QWEN3_CODER:
            return tagged_head(self._text, at), False
        is_mistral = self._answer.tools in (ToolStyle.MISTRAL, ToolStyle.MISTRAL_ARGS)
        if is_mistral and self._text[at] not in "[{":
            return named_head(self._text, at), False
        in_list = self._text[at] == "[" and self._answer.tools is not ToolStyle.HERMES
        names = self._answer.tool_names if self._answer.tools in _BARE else ()
        return json_head(self._text, at + in_list, names), in_list

    def _begin_call(self, head: CallHead, *, in_list: bool) -> None:
        call = CallDelta(self._num_calls, head.name, head.arguments or "")
        self._num_calls += 1
        self._at = head.at
        self._in_list = in_list
        self._in_object = head.in_object
        self._span = JsonSpan()
        if self.num_read + head.at > self._num_told:
            self._delta.parts.append(call)
        self._state = self._in_arguments
        if self._answer.tools is ToolStyle.QWEN3_CODER:
            self._tags = TaggedArguments(self._answer.param_kinds.get(head.name, {}))
            self._state = self._in_tags
        elif head.arguments is not None:
            self._end_arguments()

    def _in_arguments(self) -> bool:
        begin, self._at = self._at, self._span.walk(self._text, self._at)
        arguments = self._untold(begin, self._at)
        if arguments:
            self._delta.tell_arguments(self._num_calls - 1, arguments)
        if self._span.is_closed:
            self._end_arguments()
        return True

    def _in_tags(self) -> bool:
        told, self._at = self._tags.read(self._text, self._at)
        if told and self.num_read + self._at > self._num_told:
            self._delta.tell_arguments(self._num_calls - 1, told)
        if self._tags.is_closed:
            self._end_arguments()
        return bool(told)

    def _end_arguments(self) -> None:
        if self._answer.tools in (ToolStyle.HERMES, ToolStyle.QWEN3_CODER):
            self._state = self._to_end_mark
        elif self._in_object:
            self._span = JsonSpan(depth=1)
            self._state = self._to_end_of_object
        else:
            self._state = self._after_call

    def _to_end_mark(self) -> bool:
        """Behind arguments: what is left of the call says nothing."""
        assert self._marks is not None
        begin, end = self._marks
        at = self._text.find(end, self._at)
        next_at = self._text.find(begin, self._at)
        if next_at >= 0 and (at < 0 or next_at < at):
            self._at = next_at  # the model forgot to close the call
            self._state = self._in_text
            return True
        if at < 0:
            self._at = min(_possible_mark(self._text, self._at, mark) for mark in self._marks)
            return False
        self._at = at + len(end)
        self._state = self._after_call
        return True

    def _to_end_of_object(self) -> bool:
        self._at = self._span.walk(self._text, self._at)
        if self._span.is_closed:
            self._state = self._after_call
        return True

    def _after_call(self) -> bool:
        """White space is dropped; then comes another call, or content."""
        at = self._at = skip_space(self._text, self._at)
        if at == len(self._text):
            return False
        if self._in_list and self._text[at] == "]":
            self._at = at + 1
            self._in_list = False
            return True
        if self._in_list or self._answer.tools in _BARE:
            if self._text[at] in ",;":
                at = skip_space(self._text, at + 1)
            if at == len(self._text):
                return False
            head = json_head(self._text, at, self._answer.tool_names)
            if head is None:
                return False
            if isinstance(head, CallHead):
                self._begin_call(head, in_list=self._in_list)
                return True
        self._state = self._in_text
        return True

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


def _possible_mark(text: str, at: int, mark: str) -> int:
    """Where the end of a text may be the beginning of a mark; the text's length if nowhere."""
    for begin in range(max(at, len(text) - len(mark) + 1), len(text)):
        if text.startswith(mark[0], begin) and mark.startswith(text[begin:]):
            return begin
    return len(text)
