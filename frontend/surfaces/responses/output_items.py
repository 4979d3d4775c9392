"""Items of a response's output: what the model thought, said, and wants to be called."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from frontend.text.logprob_view import TokenLogprobView

_Item = dict[str, Any]


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

    def view(self) -> _Item:
        """The item when no more of it comes."""
        status = "completed" if self.is_whole else "incomplete"
        return self._view(status, [self.part()], self.text)

    def begun(self) -> _Item:
        """The item before there is anything of it."""
        return self._view("in_progress", [], "")

    def part(self) -> _Item:
        """The one part that its content has; a call has none."""
        if self.kind is ItemKind.REASONING:
            return reasoning_text(self.text)
        return output_text(self.text, self.logprobs)

    def begun_part(self) -> _Item:
        """The part before there is anything of it."""
        return reasoning_text("") if self.kind is ItemKind.REASONING else output_text("")

    def _view(self, status: str, content: list[_Item], arguments: str) -> _Item:
        match self.kind:
            case ItemKind.MESSAGE:
                own = {"type": "message", "role": "assistant", "content": content}
            case ItemKind.REASONING:
                own = {"type": "reasoning", "summary": [], "content": content}
            case ItemKind.CALL:
                call = {"call_id": self.call_id, "name": self.name, "arguments": arguments}
                own = {"type": "function_call", **call}
        return {"id": self.item_id, **own, "status": status}


def output_text(text: str, logprobs: list[TokenLogprobView] | None = None) -> _Item:
    """A part of what the model said."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs or []}


def reasoning_text(text: str) -> _Item:
    """A part of what it thought."""
    return {"type": "reasoning_text", "text": text}
