"""The prompt of `jetflock chat`: lines are asked, lines that begin with / are orders."""

from __future__ import annotations

import contextlib
import difflib
import os
import readline
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.text import Text

from jetflock.chat.asker import Asker
from jetflock.chat.chat_config import SAMPLING
from jetflock.chat.conversation import Conversation
from shared.cli.program import INTERRUPTED
from shared.errors import ConfigError, JetflockError

_MAX_HISTORY = 1000


class Leave(Exception):
    """The person has had enough."""


class Repl:
    """Reads, asks, obeys. The conversation is the asker's."""

    def __init__(self, asker: Asker, console: Console) -> None:
        self._asker = asker
        self._console = console
        self._num_interrupts = 0
        self._prefill = ""
        self._orders: dict[str, tuple[str, str, Callable[[str], None]]] = {
            "help": ("", "this list", self._help),
            "model": ("[NAME]", "show or choose the model", self._model),
            "system": ("[TEXT|none]", "show or set the system prompt", self._system),
            "regenerate": ("", "another answer to the last question", self._regenerate),
            "edit": ("", "change the last question, and ask it again", self._edit),
            "clear": ("", "forget the conversation", self._clear),
            "save": ("FILE", "write the conversation", self._save),
            "load": ("FILE", "go on with a conversation", self._load),
            "exit": ("", "leave; so do Ctrl-D, and Ctrl-C twice", self._exit),
        }

    @property
    def _conversation(self) -> Conversation:
        return self._asker.conversation

    def run(self) -> int:
        """Returns the status to exit with."""
        self._say(
            f"{self._conversation.model} at {self._asker.url}. "
            "/help lists the orders; a line that ends with \\ goes on."
        )
        with _history():
            while True:
                try:
                    self._obey_or_ask(self._read())
                    self._num_interrupts = 0
                except KeyboardInterrupt:
                    self._num_interrupts += 1
                    if self._num_interrupts > 1:
                        self._console.print()
                        return INTERRUPTED
                    self._say("\nCtrl-C again, or Ctrl-D, leaves.")
                except (EOFError, Leave):
                    self._console.print()
                    return 0
                except JetflockError as exc:
                    self._console.print(Text(str(exc), style="red"))

    def _read(self) -> str:
        """Several lines are one when all but the last end with a backslash."""
        prefill, self._prefill = self._prefill, ""
        readline.set_startup_hook(lambda: readline.insert_text(prefill))
        try:
            lines = [input("> ")]
            readline.set_startup_hook(None)
            while lines[-1].endswith("\\"):
                lines[-1] = lines[-1][:-1]
                lines.append(input(". "))
        finally:
            readline.set_startup_hook(None)
        return "\n".join(lines).strip()

    def _obey_or_ask(self, line: str) -> None:
        if not line:
            return
        if line.startswith("/") and not line.startswith("//"):
            self._obey(line)
        else:
            self._conversation.ask(line.removeprefix("/") if line.startswith("//") else line)
            self._answer()

    def _answer(self) -> None:
        if not self._asker.answer():
            raise KeyboardInterrupt  # the second one in a row leaves

    def _obey(self, line: str) -> None:
        name, _, rest = line.removeprefix("/").partition(" ")
        rest = rest.strip()
        if name in SAMPLING:
            self._set_sampling(name, rest)
        elif name in self._orders:
            self._orders[name][2](rest)
        else:
            near = difflib.get_close_matches(name, [*self._orders, *SAMPLING], 1)
            hint = f"did you mean /{near[0]}?" if near else "/help lists them"
            raise ConfigError(f"there is no order /{name}; {hint}")

    def _set_sampling(self, name: str, text: str) -> None:
        sampling = self._conversation.sampling
        if text in ("default", "none"):
            sampling.pop(name, None)
        elif text:
            try:
                sampling[name] = SAMPLING[name](text)
            except ValueError:
                kind = "a whole number" if SAMPLING[name] is int else "a number"
                raise ConfigError(f"/{name} is {text!r}, must be {kind}, or default") from None
        self._say(f"{name} is {sampling.get(name, 'the default of the model')}")

    def _help(self, _: str) -> None:
        rows = [(f"/{name} {args}".strip(), what) for name, (args, what, _) in self._orders.items()]
        rows.append(("/NAME [VALUE|default]", f"show or set {', '.join(SAMPLING)}"))
        rows.append(("//TEXT", "ask /TEXT"))
        for order, what in rows:
            self._say(f"{order:22} {what}")

    def _model(self, name: str) -> None:
        names = [str(model["id"]) for model in self._asker.models()]
        if name and name not in names:
            raise ConfigError(f"no model {name!r} is served; there are {', '.join(names)}")
        self._conversation.model = name or self._conversation.model
        others = [other for other in names if other != self._conversation.model]
        also = f"; also served: {', '.join(others)}" if others else ""
        self._say(f"model is {self._conversation.model}{also}")

    def _system(self, text: str) -> None:
        if text:
            self._conversation.system = None if text == "none" else text
        self._say(f"system prompt is {self._conversation.system or 'none'}")

    def _regenerate(self, _: str) -> None:
        if not self._conversation.take_back_answer():
            raise ConfigError("nothing has been asked yet")
        self._answer()

    def _edit(self, _: str) -> None:
        self._conversation.take_back_answer()
        question = self._conversation.take_back_question()
        if question is None:
            raise ConfigError("nothing has been asked yet")
        self._prefill = question.replace("\n", " ")

    def _clear(self, _: str) -> None:
        self._conversation.turns.clear()
        self._say("forgotten")

    def _save(self, name: str) -> None:
        path = _path(name)
        self._conversation.save(path)
        self._say(f"{len(self._conversation.turns)} turns in {path}")

    def _load(self, name: str) -> None:
        loaded = Conversation.load(_path(name))
        loaded.model = loaded.model or self._conversation.model
        self._asker.conversation = loaded
        self._say(f"{len(loaded.turns)} turns, with {loaded.model}")

    def _exit(self, _: str) -> None:
        raise Leave

    def _say(self, text: str) -> None:
        self._console.print(Text(text, style="dim"))


def _path(name: str) -> Path:
    if not name:
        raise ConfigError("name a file")
    return Path(name).expanduser()


@contextmanager
def _history() -> Iterator[None]:
    """Lines of earlier sessions; a file that cannot be used is done without."""
    state = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser()
    path = state / "jetflock" / "chat_history"
    readline.set_history_length(_MAX_HISTORY)
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600)  # it holds prompts
            readline.write_history_file(path)
