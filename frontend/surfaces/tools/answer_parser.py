"""Tells the visible text of an answer apart: reasoning, content, and calls of tools."""

from __future__ import annotations

import abc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from frontend.parsers.calls.tool_parser import ArgumentReader, JsonArguments
from shared.errors import InternalError, JetflockError
from shared.protocol.reply import AnswerFormat
from shared.telemetry.log import get_logger

log = get_logger(__name__)


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

    def emit(self, text: str, *, is_reasoning: bool) -> None:
        """More text of one kind."""
        if not text:
            return
        last = self.parts[-1] if self.parts else None
        if isinstance(last, TextDelta) and last.is_reasoning is is_reasoning:
            last.text += text
        else:
            self.parts.append(TextDelta(text, is_reasoning))

    def emit_arguments(self, idx: int, text: str) -> None:
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


@contextmanager
def _failures_reported() -> Iterator[None]:
    """What goes wrong in a parser, which may be an operator's own, ends its request alone.

    Raises InternalError.
    """
    try:
        yield
    except JetflockError:
        raise
    except Exception as exc:
        log.exception("answer_not_read")
        raise InternalError(
            f"The model's answer could not be read: its parser failed with {type(exc).__name__}"
        ) from exc


class AnswerParser(abc.ABC):
    """One state machine for streamed and whole answers.

    What it has emitted depends on the text so far, never on how that was cut into pieces. Text that
    may become a mark or the head of a call is not read yet: `num_read` and `checksum` describe
    what was. A reader that has had the first `num_emitted` characters gets what follows them only:
    the parser goes over the text again and emits nothing until there.
    """

    def __init__(self, answer: AnswerFormat, num_emitted: int, begin: Callable[[], bool]) -> None:
        """`begin`: the first state. Each reads what it can decide, and returns whether to go on at
        once: False when more text is needed.
        """
        self._answer = answer
        self._num_emitted = num_emitted
        self._text = ""  # not read yet
        self.num_read = 0
        self.checksum = 0
        self._delta = AnswerDelta()
        self._num_calls = 0
        self._arguments: ArgumentReader = JsonArguments()
        self._owed: CallDelta | None = None  # emitted with the next text that is read
        self._owed_at = 0  # its place in `_delta`
        self._owed_behind = 0  # so much text
        self._at = 0  # in `_text`: everything before it has been read
        self.has_thought = answer.begins_in_reasoning
        self._state = begin

    def feed(self, text: str) -> AnswerDelta:
        """Read more text."""
        self._text += text
        with _failures_reported():
            while self._at < len(self._text) and self._state():
                pass
        return self._take_delta()

    def finish(self, *, is_cut: bool) -> AnswerDelta:
        """No more text comes. `is_cut`: not because the model had said all."""
        with _failures_reported():
            self._end(is_cut=is_cut)
        self._emit_owed()
        return self._take_delta()

    @property
    @abc.abstractmethod
    def is_thinking(self) -> bool:
        """Whether the model has not said what ends its reasoning."""

    @property
    def has_complete_calls(self) -> bool:
        """Whether there are calls, all of them with whole arguments."""
        return self._num_calls > 0 and self._state != self._in_arguments

    @abc.abstractmethod
    def _end(self, *, is_cut: bool) -> None:
        """Emit what is left, or drop it."""

    @abc.abstractmethod
    def _end_arguments(self) -> None:
        """The arguments of a call are whole: choose the next state."""

    def _take_delta(self) -> AnswerDelta:
        if self.num_read + self._at > self._owed_behind:
            self._emit_owed()
        read, self._text = self._text[: self._at], self._text[self._at :]
        self.num_read += len(read)
        self.checksum = zlib.crc32(read.encode(), self.checksum)
        self._at = 0
        delta, self._delta = self._delta, AnswerDelta()
        self._owed_at = 0
        return delta

    def _emit_owed(self) -> None:
        if self._owed is not None:
            self._delta.parts.insert(self._owed_at, self._owed)
            self._owed = None

    def _open_call(self, name: str, at: int, arguments: str | None, reader: ArgumentReader) -> None:
        """A call has begun; the text goes on at `at`. None: its arguments are read by `reader`."""
        call = CallDelta(self._num_calls, name, arguments or "")
        self._num_calls += 1
        self._at = at
        if self.num_read + at > self._num_emitted:
            self._delta.parts.append(call)
        if arguments is not None:
            self._end_arguments()
            return
        self._arguments = reader
        self._state = self._in_arguments

    def _in_arguments(self) -> bool:
        begin = self._at
        read, self._at = self._arguments.read(self._text, begin)
        has_read = bool(read)
        if self._arguments.is_verbatim:
            read = self._new_text(begin, self._at)
        elif self._at == begin:
            self._owe(read)
            read = ""
        elif self.num_read + self._at <= self._num_emitted:
            read = ""
        if read:
            self._delta.emit_arguments(self._num_calls - 1, read)
        if self._arguments.is_closed:
            self._end_arguments()
        return has_read

    def _owe(self, arguments: str) -> None:
        """Something else closes arguments, and is not read with them: who has had all text so
        far has not had that.
        """
        self._emit_owed()  # of the call before, behind which more was read
        if arguments and self.num_read + self._at >= self._num_emitted:
            self._owed = CallDelta(self._num_calls - 1, arguments=arguments)
            self._owed_at = len(self._delta.parts)
            self._owed_behind = self.num_read + self._at

    # What is emitted of the text from `_at` on, to an end.

    def _emit_content(self, end: int) -> None:
        self._delta.emit(self._new_text(self._at, end), is_reasoning=False)
        self._at = end

    def _emit_reasoning(self, end: int) -> None:
        if not self._answer.hides_reasoning:
            self._delta.emit(self._new_text(self._at, end), is_reasoning=True)
        self._at = end

    def _new_text(self, begin: int, end: int) -> str:
        return self._text[max(begin, self._num_emitted - self.num_read) : end]
