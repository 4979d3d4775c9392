"""`jetflock chat [PROMPT]`: one answer, or a conversation."""

# No `from __future__ import annotations` here: cyclopts reads the types of the parameters.

import functools
import sys
from typing import Annotated

from rich.console import Console
from rich.text import Text

from jetflock.chat.answer_view import AnswerView, MarkdownView, PlainView
from jetflock.chat.asker import Asker
from jetflock.chat.chat_config import ChatConfig
from jetflock.chat.conversation import Conversation
from jetflock.chat.http_chat import HttpChat
from jetflock.chat.nats_chat import NatsChat
from jetflock.chat.repl import Repl
from jetflock.running.http_service import HttpService
from jetflock.running.running_service import ServiceError, check_listens
from shared.cli.program import INTERRUPTED, Program
from shared.config import FLAT
from shared.errors import ConfigError

_SUMMARY = """\
Talk to a model over HTTP: a conversation, or the answer to PROMPT.

Without a terminal, what stands on stdin is asked, and nothing but the answer is printed."""
_DEFAULTS = ChatConfig()


def main(prompt: str | None = None, /, config: Annotated[ChatConfig, FLAT] = _DEFAULTS) -> None:
    """PROMPT is asked at once; - reads it from stdin."""
    try:
        status = _chat(prompt, config)
    except KeyboardInterrupt:
        status = INTERRUPTED
    except BrokenPipeError:  # nobody reads on
        sys.stderr.close()
        status = 1
    raise SystemExit(status)


def _chat(prompt: str | None, config: ChatConfig) -> int:
    urls = config.urls()
    if not urls:
        raise ConfigError("--url names no frontend")
    if prompt == "-" or (prompt is None and not sys.stdin.isatty()):
        prompt = sys.stdin.read().strip()
        if not prompt:
            raise ConfigError("stdin is empty: there is nothing to ask")
    console = Console(highlight=False)
    if prompt is None and not console.is_terminal:
        raise ConfigError("a conversation needs a terminal; give a PROMPT")
    with _service(config, urls) as service:
        conversation = _conversation(config)
        conversation.model = conversation.model or service.default_model()
        asker = Asker(
            service,
            conversation,
            functools.partial(_new_view, console),
            functools.partial(_print_numbers, console, config),
        )
        if prompt is None:
            return Repl(asker, console).run()
        conversation.ask(prompt)
        return 0 if asker.answer() else INTERRUPTED


def _service(config: ChatConfig, urls: list[str]) -> HttpChat | NatsChat:
    """Raises ConfigError when HTTP and NATS are mixed, ServiceError when no NATS server listens."""
    num_nats = sum(url.startswith(("nats://", "tls://")) for url in urls)
    if not num_nats:
        return HttpChat(HttpService(urls, config.key()))
    if num_nats < len(urls):
        raise ConfigError(f"--url {config.url!r} mixes HTTP and NATS; give one kind")
    try:
        check_listens(",".join(urls))
    except ConfigError as exc:  # nobody answers: that is no wrong flag
        raise ServiceError(f"{exc}; is it running (jetflock serve)?") from exc
    return NatsChat(",".join(urls), config.key())


def _conversation(config: ChatConfig) -> Conversation:
    """A new one, or a loaded one that flags change."""
    conversation = Conversation() if config.load is None else Conversation.load(config.load)
    conversation.model = config.model or conversation.model
    conversation.system = config.system or conversation.system
    conversation.sampling |= config.sampling()
    return conversation


def _new_view(console: Console) -> AnswerView:
    is_screen = console.is_terminal and not console.is_dumb_terminal
    return MarkdownView(console) if is_screen else PlainView()


def _print_numbers(console: Console, config: ChatConfig, numbers: str) -> None:
    if console.is_terminal:
        console.print(Text(numbers, style="dim"))
    elif config.stats:
        sys.stderr.write(numbers + "\n")


PROGRAM = Program(name="jetflock chat", summary=_SUMMARY, main=main)

if __name__ == "__main__":
    PROGRAM.run()
