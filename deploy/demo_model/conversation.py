"""What the demo model learns from: turns, and the exchanges that they make."""

from dataclasses import dataclass
from random import Random
from typing import Literal, Protocol

Role = Literal["system", "user", "assistant", "text"]


@dataclass(frozen=True, slots=True)
class Turn:
    """One message; the role `text` is plain text outside any chat."""

    role: Role
    text: str


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question and its answer, possibly with follow-ups that need the turns before."""

    turns: tuple[Turn, ...]

    @classmethod
    def of(cls, *texts: str) -> "Exchange":
        """Turns that alternate, starting with the user."""
        if len(texts) % 2:
            raise ValueError(f"an exchange ends with an answer, got {len(texts)} texts")
        roles: tuple[Role, Role] = ("user", "assistant")
        return cls(tuple(Turn(roles[i % 2], text) for i, text in enumerate(texts)))

    def then(self, other: "Exchange") -> "Exchange":
        """Both, one after the other."""
        return Exchange(self.turns + other.turns)

    @property
    def answer(self) -> str:
        """What the assistant says first."""
        return self.turns[1].text


class Topic(Protocol):
    """Draws one exchange about one subject."""

    def __call__(self, rng: Random, /) -> Exchange: ...
