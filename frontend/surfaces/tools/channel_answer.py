"""The visible text of an answer in channels, message by message: GPT-OSS's."""

from __future__ import annotations

from collections.abc import Callable

from frontend.parsers import channels
from frontend.parsers.answer_parsers import AnswerParsers
from frontend.parsers.calls.json_span import skip_space
from frontend.parsers.calls.marks import possible_mark
from frontend.parsers.calls.tool_parser import JsonArguments
from frontend.surfaces.tools.answer_parser import AnswerParser
from shared.protocol.reply import AnswerFormat

_HEADERS = (channels.START, channels.CHANNEL)  # a message without an end has one behind it
_ENDS = (channels.END, channels.CALL, channels.RETURN)
_RECIPIENT = "to="  # the prompt ends with the role: a header may go on with who it is for
_BODY = channels.MESSAGE
_BETWEEN = "\n\n"  # messages of one kind, which a client sees as one text


class ChannelAnswer(AnswerParser):
    """Messages to the user are content, `analysis` is reasoning, messages to functions are calls.

    Text without a header is content: a grammar may leave no room for one. A header that does not
    end is, too; one that the answer ends in says nothing.
    """

    def __init__(self, answer: AnswerFormat, *, num_emitted: int = 0) -> None:
        begin = self._in_message if answer.begins_in_reasoning else self._begin
        super().__init__(answer, num_emitted, begin)
        tools, reasoning = AnswerParsers.of(answer)
        self._has_calls = tools is not None and tools.has_channels
        self._separates_thoughts = reasoning is not None
        self._is_thought = answer.begins_in_reasoning  # of the message
        self._has_ended_thought = False
        self._is_new = False  # nothing of the message was emitted yet
        self._has_emitted = {True: answer.begins_in_reasoning, False: False}  # by `_is_thought`

    @property
    def is_thinking(self) -> bool:
        return self._is_thought and not self._has_ended_thought

    def _end(self, *, is_cut: bool) -> None:
        end = len(self._text)
        if self._state == self._in_header and not is_cut and self._text[self._at :].endswith(_BODY):
            name = self._function(self._header(end - len(_BODY)).recipient)
            if name:
                self._open_call(name, end, "{}", JsonArguments())
        elif self._state == self._in_message or not self._is_dropped(is_cut=is_cut):
            self._emit(end)
        self._at = end

    def _is_dropped(self, *, is_cut: bool) -> bool:
        """Whether nobody would read as content what is left outside messages."""
        if self._state in (self._in_arguments, self._behind_arguments):
            return True
        if is_cut and (self._has_calls or self._answer.is_calls_alone):
            return True
        return any(mark in self._text[self._at :] for mark in channels.MARKS)

    # The states.

    def _begin(self) -> bool:
        return self._go_on_with((*_HEADERS, _RECIPIENT))

    def _between(self) -> bool:
        """Behind a message."""
        return self._go_on_with(_HEADERS)

    def _go_on_with(self, headers: tuple[str, ...]) -> bool:
        """A header, what ends messages once more, or bare content."""
        at = skip_space(self._text, self._at)
        rest = self._text[at : at + channels.MAX_HEADER]
        if rest.startswith(headers):
            self._at = at
            self._leave_message(self._in_header)
        elif rest.startswith(_ENDS):
            self._at = at + len(next(mark for mark in _ENDS if rest.startswith(mark)))
            self._state = self._between
        elif at - self._at < channels.MAX_HEADER and any(
            mark.startswith(rest) for mark in (*headers, *_ENDS)
        ):
            return False
        else:
            self._enter_message(is_thought=False)
        return True

    def _in_header(self) -> bool:
        """Read with what follows it, so that nothing is half read where a call begins."""
        at, longest = self._at, channels.MAX_HEADER + len(_BODY)
        end = self._text.find(_BODY, at, at + longest)
        if end < 0:
            if len(self._text) - at < longest:
                return False
            self._enter_message(is_thought=False)
            self._emit(at + channels.MAX_HEADER)
            return True
        header, begin = self._header(end), end + len(_BODY)
        if name := self._function(header.recipient):
            return self._begin_call(name, begin)
        self._at = begin
        self._enter_message(is_thought=header.channel == "analysis" and self._separates_thoughts)
        return True

    def _begin_call(self, name: str, begin: int) -> bool:
        """Behind the header of a message to a function."""
        at = skip_space(self._text, begin)
        rest, marks = self._text[at : at + channels.MAX_HEADER], (*_HEADERS, *_ENDS)
        if rest.startswith("{"):
            self._open_call(name, at, None, JsonArguments())
        elif rest.startswith(marks):
            self._open_call(name, at, "{}", JsonArguments())
        elif at - begin < channels.MAX_HEADER and any(mark.startswith(rest) for mark in marks):
            return False
        else:  # no arguments: what is said is for the user to see
            self._at = begin
            self._enter_message(is_thought=False)
        return True

    def _in_message(self) -> bool:
        marks = (*_HEADERS, *_ENDS)
        end, mark = self._next_mark(marks)
        self._emit(end)
        if mark:
            self._end_message(mark)
        return bool(mark)

    def _end_arguments(self) -> None:
        self._state = self._behind_arguments

    def _behind_arguments(self) -> bool:
        """What else the message to a function has is dropped."""
        self._at, mark = self._next_mark((*_HEADERS, *_ENDS))
        if mark:
            self._end_message(mark)
        return bool(mark)

    # What the states share.

    def _header(self, end: int) -> channels.MessageHeader:
        return channels.MessageHeader.parse(self._text[self._at : end])

    def _function(self, recipient: str) -> str:
        """Its name; "" for whoever is none."""
        if not self._has_calls:
            return ""
        if recipient in self._answer.tool_names:
            return recipient
        prefix, _, name = recipient.partition(channels.FUNCTIONS)
        return "" if prefix else name

    def _next_mark(self, marks: tuple[str, ...]) -> tuple[int, str]:
        """Where the first of them begins; without one, where the text may become one."""
        found = [(at, mark) for mark in marks if (at := self._text.find(mark, self._at)) >= 0]
        if found:
            return min(found)
        return min(possible_mark(self._text, self._at, mark) for mark in marks), ""

    def _enter_message(self, *, is_thought: bool) -> None:
        self._is_thought = is_thought
        self.has_thought |= is_thought
        self._is_new = True
        self._state = self._in_message

    def _leave_message(self, state: Callable[[], bool]) -> None:
        self._has_ended_thought |= self._is_thought
        self._is_thought = False
        self._state = state

    def _end_message(self, mark: str) -> None:
        if mark in _HEADERS:
            self._leave_message(self._in_header)
        else:
            self._at += len(mark)
            self._leave_message(self._between)

    def _emit(self, end: int) -> None:
        if end == self._at:
            return
        if self._is_new and self._has_emitted[self._is_thought]:
            is_new = self.num_read + self._at >= self._num_emitted
            if is_new and not (self._is_thought and self._answer.hides_reasoning):
                self._delta.emit(_BETWEEN, is_reasoning=self._is_thought)
        self._is_new = False
        self._has_emitted[self._is_thought] = True
        if self._is_thought:
            self._emit_reasoning(end)
        else:
            self._emit_content(end)
