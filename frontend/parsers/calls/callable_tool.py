"""What a grammar must know of a function that a model may call."""

from __future__ import annotations

from typing import Any, Protocol


class CallableTool(Protocol):
    """A function, as its request describes it."""

    @property
    def name(self) -> str: ...

    @property
    def parameters(self) -> Any:
        """The JSON schema as it was given; None where there is none."""
        ...

    @property
    def param(self) -> str:
        """Where it stands in the body."""
        ...

    def schema(self) -> dict[str, Any]:
        """Of the arguments, reduced to what constrains them. Raises InvalidRequest."""
        ...
