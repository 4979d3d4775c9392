"""Asks for the next answer of a conversation, shows it, and remembers it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jetflock.chat.answer import Answer
from jetflock.chat.answer_view import AnswerView
from jetflock.chat.chat_backend import ChatBackend
from jetflock.chat.conversation import Conversation


class Asker:
    """What is asked is the conversation's last turn."""

    def __init__(
        self,
        service: ChatBackend,
        conversation: Conversation,
        new_view: Callable[[], AnswerView],
        show_numbers: Callable[[str], None],
    ) -> None:
        self._service = service
        self.conversation = conversation
        self._new_view = new_view
        self._show_numbers = show_numbers

    @property
    def url(self) -> str:
        return self._service.url

    def models(self) -> list[dict[str, Any]]:
        """Raises ServiceError."""
        return self._service.models()

    def answer(self) -> bool:
        """False when Ctrl-C stopped it: what came so far is the answer. Raises ServiceError."""
        answer, is_whole = Answer(), True
        try:
            with self._new_view() as view, self._service.stream(self.conversation.body()) as stream:
                for event in stream:
                    answer.add(event.data)
                    answer.num_resumes = stream.num_resumes
                    view.show(answer)
        except KeyboardInterrupt:
            is_whole = False
        finally:
            if answer.text:
                self.conversation.answer(answer.text)
        self._show_numbers(answer.numbers())
        return is_whole
