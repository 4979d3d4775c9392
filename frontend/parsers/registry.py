"""Parsers by name, and by the chat templates that they fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from shared.errors import ConfigError, MalformedMessage


class Named(Protocol):
    """A parser, as far as a registry looks at it."""

    @property
    def name(self) -> str:
        """Its name in what frontends store: it never changes."""
        ...

    @property
    def aliases(self) -> tuple[str, ...]: ...

    @property
    def level(self) -> int:
        """The feature level from which frontends may store the name."""
        ...

    def fits(self, template: str) -> bool:
        """Whether it reads what a model with this chat template writes."""
        ...


P = TypeVar("P", bound=Named)


class Registry(Generic[P]):
    """All parsers of one kind. It changes only before the first request: by `put_first`."""

    def __init__(self, kind: str, parsers: Sequence[P]) -> None:
        """`parsers`: where several fit a template, the first one is meant."""
        self._kind = kind
        self._parsers = tuple(parsers)
        names = [(name, each) for each in parsers for name in (each.name, *each.aliases)]
        self._by_name = dict(names)
        assert len(self._by_name) == len(names), "a name is of one parser"

    def __iter__(self) -> Iterator[P]:
        return iter(self._parsers)

    @property
    def names(self) -> tuple[str, ...]:
        """All by which one can be chosen, sorted."""
        return tuple(sorted(self._by_name))

    def put_first(self, parser: P) -> None:
        """One more parser, which goes before the others where it fits; its aliases, which it may
        have from another one, are none. Raises ConfigError.
        """
        known = self._by_name.get(parser.name)
        if known is not None and type(known).__module__ != type(parser).__module__:
            raise ConfigError(
                f"{type(parser).__name__} is named {parser.name!r}, as a {self._kind} that is here"
            )
        self._parsers = (parser, *(each for each in self._parsers if each is not known))
        self._by_name[parser.name] = parser

    def chosen(self, name: str) -> P:
        """The parser that an operator chose. Raises ConfigError."""
        if name not in self._by_name:
            raise ConfigError(
                f"there is no {self._kind} {name!r}; there are {', '.join(self.names)}, or a "
                "file of your own that ends in .py"
            )
        return self._by_name[name]

    def stored(self, name: str) -> P:
        """The parser that a frontend stored.

        Raises MalformedMessage for one that only a newer build has.
        """
        if name not in self._by_name:
            raise MalformedMessage(f"{self._kind} of another build: {name[:100]!r}")
        return self._by_name[name]

    def fitting(self, template: str) -> P | None:
        """The parser for the source of a chat template. None: its form is not known."""
        return next((parser for parser in self._parsers if parser.fits(template)), None)
