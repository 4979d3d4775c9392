"""How one family of models writes calls of tools into its text: the seam that each form fills."""

from __future__ import annotations

import abc
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, ClassVar, Protocol

from frontend.parsers.calls.call_head import CallHead, Head, ListEnd, NoCall, end_mark
from frontend.parsers.calls.json_span import JsonSpan
from frontend.parsers.calls.lark_json import json_rule
from frontend.parsers.calls.marks import Marks
from shared.protocol.reply import ParamKind

Message = dict[str, Any]
Declaration = dict[str, Any]  # {"type": "function", "function": {"name": ...}}
MarkRef = Callable[[str], str]  # a mark -> how a grammar names it, as a token where it is one


class ArgumentReader(Protocol):
    """The pieces in which the text comes change nothing of what is told altogether."""

    is_verbatim: bool  # what is told is the text itself
    is_closed: bool  # no more of them comes

    def read(self, text: str, at: int) -> tuple[str, int]:
        """JSON of what begins here, and where that ends; "" while it is open."""
        ...


class JsonArguments:
    """An object in JSON: told as the model writes it, character by character."""

    is_verbatim = True

    def __init__(self) -> None:
        self._span = JsonSpan()
        self.is_closed = False

    def read(self, text: str, at: int) -> tuple[str, int]:
        end = self._span.walk(text, at)
        self.is_closed = self._span.is_closed
        return text[at:end], end


class CallableTool(Protocol):
    """A function, as its request describes it."""

    @property
    def name(self) -> str: ...

    @property
    def parameters(self) -> Any:
        """The JSON schema as it was given; None where there is none."""
        ...

    @property
    def schema_param(self) -> str:
        """Where that stands in the body."""
        ...

    def schema(self) -> dict[str, Any]:
        """The schema of the arguments, reduced to what constrains them. Raises InvalidRequest."""
        ...


class Tail(Protocol):
    """Walks over what follows a call's arguments and belongs to the call."""

    is_closed: bool

    def walk(self, text: str, at: int) -> int:
        """Where it ends, or so far as the text goes."""
        ...


class ToolParser(abc.ABC):
    """One form of calls. It keeps nothing: what a call needs is made for that call.

    `MarkedAnswer` asks in turn: does the answer begin with a call (`at_start`), what stands behind
    a mark (`behind_mark`), what are its arguments (`arguments`), what closes it (`tail`), and what
    follows (`behind_call`). Texts given to these are never empty from `at` on. The rest describes
    the same form to those who ask for it: to grammars, and to models without a template for tools.
    """

    name: ClassVar[str]  # in configuration and in what frontends store: it never changes
    aliases: ClassVar[tuple[str, ...]] = ()  # what others call it
    level: ClassVar[int] = 1  # the feature level from which frontends may store its name
    marks: ClassVar[Marks]
    more_marks: ClassVar[tuple[str, ...]] = ()  # that a reader of the text must see, too
    # In the dialect of Lark, an answer without calls, where a call may begin without its mark.
    no_call: ClassVar[str] = ""
    goes_on: ClassVar[bool] = False  # content may follow calls
    has_channels: ClassVar[bool] = False  # calls are messages beside those to the user
    content_head: ClassVar[str] = ""  # what an answer without calls begins with
    reads_kinds: ClassVar[bool] = False  # its arguments need the kinds of the parameters
    argument_key: ClassVar[str] = "arguments"  # where a call is an object in JSON
    call_id_len: ClassVar[int | None] = None  # where templates take ids of one length only

    @property
    def is_bare(self) -> bool:
        """Whether a call may begin without its mark."""
        return bool(self.no_call)

    @property
    def shown_marks(self) -> list[str]:
        """All that a reader of the text must see, also where a tokenizer hides it."""
        return [mark for mark in (*self.marks, *self.more_marks) if mark]

    @property
    def example(self) -> str:
        """A call, for models whose template has none."""
        begin, end = self.marks
        return f'{begin}{{"name": "<name>", "{self.argument_key}": {{...}}}}{end}'

    @abc.abstractmethod
    def fits(self, template: str) -> bool:
        """Whether a chat template with this source has calls in this form."""

    def messages(self, messages: list[Message], template: str) -> list[Message]:
        """The messages as its templates take them. `template`: the source of the one at hand."""
        return messages

    def with_tools(
        self, messages: list[Message], tools: list[Declaration], template: str
    ) -> list[Message]:
        """The messages, where its templates take the tools from them."""
        return messages

    def declared(self, tools: list[Declaration]) -> list[Declaration]:
        """What a client declares, as its templates take it."""
        return tools

    def at_start(self, text: str, at: int, names: Collection[str]) -> Head:
        """What an answer begins with. `names`: of the functions that may be called."""
        return NoCall()

    @abc.abstractmethod
    def behind_mark(self, text: str, at: int, names: Collection[str]) -> Head:
        """What stands behind the mark that begins calls, and white space."""

    def arguments(self, kinds: Mapping[str, ParamKind]) -> ArgumentReader:
        """`kinds`: of the parameters of the function that is called."""
        return JsonArguments()

    def tail(self, head: CallHead) -> Tail | None:
        """None: nothing behind the arguments belongs to the call."""
        return JsonSpan(depth=1) if head.in_object else None

    def behind_call(
        self, text: str, at: int, names: Collection[str], *, in_list: bool
    ) -> Head | ListEnd:
        """What follows a call, and white space."""
        return NoCall()

    @abc.abstractmethod
    def calls_rule(self, ref: MarkRef, *, is_single: bool) -> str:
        """The rule, in Lark, of one or more of `call`, behind the first mark where there is one."""

    def call_rules(self, i: int, tool: CallableTool, ref: MarkRef) -> Iterator[str]:
        """The rules, in Lark, of `call_i` and what it is made of. Raises InvalidRequest."""
        head = f'{{"name": {json.dumps(tool.name)}, "{self.argument_key}": '
        yield f'call_{i}: {json.dumps(head)} arguments_{i} "}}"'
        yield f"arguments_{i}: %json {json_rule(tool.schema())}"


class ListedCalls(ToolParser):
    """A form whose calls stand in one list, in brackets and with commas between them."""

    @abc.abstractmethod
    def next_in_list(self, text: str, at: int, names: Collection[str]) -> Head:
        """The call that follows another one in the list, with the comma before it."""

    def behind_call(
        self, text: str, at: int, names: Collection[str], *, in_list: bool
    ) -> Head | ListEnd:
        if in_list:
            return ListEnd(at + 1) if text[at] == "]" else self.next_in_list(text, at, names)
        return end_mark(text, at, self.marks.end) if self.marks.end else NoCall()

    def calls_rule(self, ref: MarkRef, *, is_single: bool) -> str:
        return '"[" call "]"' if is_single else '"[" call (", " call)* "]"'
