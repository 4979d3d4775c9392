"""How one family of models sets its reasoning apart: the seam that each form fills."""

from __future__ import annotations

from typing import ClassVar


class ReasoningParser:
    """Marks between which a model thinks before it answers.

    Each mark may be written in several ways; the first of them is what a grammar asks for.
    """

    name: ClassVar[str]  # in configuration and in what frontends store: it never changes
    aliases: ClassVar[tuple[str, ...]] = ()  # what others call it
    level: ClassVar[int] = 1  # the feature level from which frontends may store its name
    begins: ClassVar[tuple[str, ...]]
    ends: ClassVar[tuple[str, ...]]
    is_implied: ClassVar[bool] = False  # it thinks first, also without the opening mark

    @property
    def shown_marks(self) -> list[str]:
        """All that a reader of the text must see, also where a tokenizer hides it."""
        return [*self.begins, *self.ends]

    def fits(self, template: str) -> bool:
        """Whether a chat template with this source cuts reasoning out of earlier answers."""
        return any(end in template for end in self.ends)

    def is_open_in(self, content: str) -> bool:
        """Whether reasoning that began in an answer so far has not ended there."""
        begun = max(content.rfind(mark) for mark in self.begins)
        ended = max(content.rfind(mark) for mark in self.ends)
        return begun > ended or (self.is_implied and ended < 0)
