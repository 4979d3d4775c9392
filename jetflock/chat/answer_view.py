"""How an answer is shown while it comes: Markdown to a person, plain text to a program."""

from __future__ import annotations

import sys
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markdown import Markdown
from rich.spinner import Spinner
from rich.text import Text

from jetflock.chat.answer import Answer

_FENCE = "```"
_MARGIN = 4  # lines that the growing part leaves free


class AnswerView(Protocol):
    """Shown inside `with`, again and again as it grows."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc_info: object) -> None: ...

    def show(self, answer: Answer) -> None: ...


class PlainView:
    """The text alone, as it comes; what the model thinks is left out."""

    def __init__(self) -> None:
        self._num_shown = 0
        self._ends_line = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if not self._ends_line:
            sys.stdout.write("\n")
            sys.stdout.flush()

    def show(self, answer: Answer) -> None:
        new = answer.text[self._num_shown :]
        if not new:
            return
        sys.stdout.write(new)
        sys.stdout.flush()
        self._num_shown = len(answer.text)
        self._ends_line = new.endswith("\n")


class MarkdownView:
    """Finished paragraphs are printed once and for all; the last one is drawn again as it grows."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(
            Spinner("dots"),
            console=console,
            refresh_per_second=12,
            transient=True,
            vertical_overflow="crop",
        )
        self._num_printed = 0  # characters of the text
        self._num_thought = 0
        self._text = ""
        self._reasoning = ""

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._live.update(Text(""))
        self._live.stop()
        self._print_reasoning(len(self._reasoning))
        if rest := self._text[self._num_printed :].strip():
            self._console.print(Markdown(rest))

    def show(self, answer: Answer) -> None:
        self._text, self._reasoning = answer.text, answer.reasoning
        if answer.text:
            self._print_reasoning(len(self._reasoning))
        end = finished_len(answer.text)
        if end > self._num_printed:
            self._console.print(Markdown(answer.text[self._num_printed : end].strip()))
            self._console.print()
            self._num_printed = end
        self._live.update(self._growing())

    def _print_reasoning(self, end: int) -> None:
        if thought := self._reasoning[self._num_thought : end].strip():
            self._console.print(Text(thought, style="dim italic"))
            self._console.print()
        self._num_thought = max(end, self._num_thought)

    def _growing(self) -> RenderableType:
        """Shows as much of its end as the screen holds."""
        max_lines = max(1, self._console.height - _MARGIN)
        thought = _last_lines(self._reasoning[self._num_thought :], max_lines)
        tail = self._text[self._num_printed :]
        shown = _last_lines(tail, max_lines)
        if shown != tail and tail.lstrip().startswith(_FENCE):
            shown = f"{_FENCE}\n{shown}"
        parts: list[RenderableType] = []
        if thought.strip():
            parts.append(Text(thought, style="dim italic"))
        parts.append(Markdown(shown) if shown.strip() else Spinner("dots"))
        return Group(*parts)


def finished_len(text: str) -> int:
    """How much of a growing text is made of whole paragraphs: to the last empty line outside of
    code.
    """
    end = position = 0
    is_code = False
    for line in text.splitlines(keepends=True):
        position += len(line)
        if line.lstrip().startswith(_FENCE):
            is_code = not is_code
        elif not line.strip() and line.endswith("\n") and not is_code:
            end = position
    return end


def _last_lines(text: str, num: int) -> str:
    return "\n".join(text.split("\n")[-num:])
