"""Items of a response's output: what the model thought, said, and wants to be called."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from frontend.surfaces.responses.response_answer import (
    CallItem,
    ItemStatus,
    OutputMessage,
    OutputText,
    ReasoningItem,
    ReasoningText,
    ResponseItem,
)
from frontend.text.logprob_view import TokenLogprobView


class ItemKind(enum.Enum):
    """The value begins the ids of such items."""

    MESSAGE = "msg"
    REASONING = "rs"
    CALL = "fc"


@dataclass(slots=True)
class OutputItem:
    """One item, as far as it has come."""

    kind: ItemKind
    idx: int  # in the output
    item_id: str
    name: str = ""  # of the function, as the id: of a call
    call_id: str = ""
    is_whole: bool = False
    texts: list[str] = field(default_factory=list)  # said, thought, or of the arguments
    logprobs: list[TokenLogprobView] = field(default_factory=list)  # of a message

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def view(self) -> ResponseItem:
        """The item when no more of it comes."""
        return self._view("completed" if self.is_whole else "incomplete", self.text)

    def begun(self) -> ResponseItem:
        """The item before there is anything of it."""
        return self._view("in_progress", None)

    def part(self) -> OutputText | ReasoningText:
        """The one part that its content has; a call has none."""
        if self.kind is ItemKind.REASONING:
            return ReasoningText(text=self.text)
        return output_text(self.text, self.logprobs)

    def begun_part(self) -> OutputText | ReasoningText:
        """The part before there is anything of it."""
        return ReasoningText(text="") if self.kind is ItemKind.REASONING else output_text("")

    def _view(self, status: ItemStatus, text: str | None) -> ResponseItem:
        """`text`: None where there is nothing of it yet."""
        match self.kind:
            case ItemKind.MESSAGE:
                return OutputMessage(
                    id=self.item_id,
                    type="message",
                    role="assistant",
                    content=[] if text is None else [output_text(text, self.logprobs)],
                    status=status,
                )
            case ItemKind.REASONING:
                return ReasoningItem(
                    id=self.item_id,
                    type="reasoning",
                    summary=[],
                    content=[] if text is None else [ReasoningText(text=text)],
                    status=status,
                )
            case ItemKind.CALL:
                return CallItem(
                    id=self.item_id,
                    type="function_call",
                    call_id=self.call_id,
                    name=self.name,
                    arguments=text or "",
                    status=status,
                )


def output_text(text: str, logprobs: list[TokenLogprobView] | None = None) -> OutputText:
    """A part of what the model said."""
    return OutputText(text=text, annotations=[], logprobs=logprobs or [])
