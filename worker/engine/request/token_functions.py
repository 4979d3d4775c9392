"""An operator's functions that say, of a request and its tokens, how its next token is chosen."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from shared.checkpoint.processor_file import ProcessorFile
from shared.errors import ConfigError, ProcessorFault
from shared.protocol.sampling import ProcessorCall

# Of what the request says, prompt and output: a map of ids to what is added to their logits (-inf:
# never), or the only ids that may come, or None.
TokenFunction: TypeAlias = Callable[
    [Mapping[str, Any], Sequence[int], Sequence[int]], Mapping[int, float] | Collection[int] | None
]
Ids: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FunctionAnswer:
    """What one function says at one place."""

    token_ids: Ids
    values: npt.NDArray[np.float32] | None  # to be added; None: no other token may come


class TokenFunctions:
    """Those of an operator's file, by name. It is run once, when the engine starts."""

    def __init__(self, functions: Mapping[str, TokenFunction]) -> None:
        self._functions = functions

    @classmethod
    def load(cls, place: str | None) -> TokenFunctions:
        """Raises ConfigError."""
        if place is None:
            return cls({})
        file = ProcessorFile.read(place)
        what = f"logits_processors {str(file.path)!r}"
        space: dict[str, Any] = {"__name__": "jetflock_logits_processors"}
        try:
            exec(compile(file.source, str(file.path), "exec"), space)  # noqa: S102 - operator's own
        except (Exception, SystemExit) as exc:
            raise ConfigError(f"{what} cannot be loaded: {type(exc).__name__}: {exc}") from exc
        for name in file.names:
            if not inspect.isfunction(space.get(name)):
                raise ConfigError(f"{what}: {name} is no function when the file has run")
        return cls({name: space[name] for name in file.names})

    def of(self, calls: Sequence[ProcessorCall]) -> tuple[BoundFunction, ...]:
        """Raises ProcessorFault for a name that the file has not."""
        for call in calls:
            if call.name not in self._functions:
                raise ProcessorFault(f"this worker has no logits processor {call.name!r}")
        return tuple(
            BoundFunction(call.name, self._functions[call.name], call.params) for call in calls
        )


@dataclass(frozen=True, slots=True)
class BoundFunction:
    """A function with the parameters of one request."""

    name: str
    function: TokenFunction
    params: str  # JSON: it gets an object of its own each time

    def ask(
        self, prompt_ids: Sequence[int], output_ids: Sequence[int], vocab_size: int
    ) -> FunctionAnswer | None:
        """Raises ProcessorFault for whatever it does wrong."""
        try:
            answer = self.function(json.loads(self.params), prompt_ids, output_ids)
            return None if answer is None else _checked(answer, vocab_size)
        except Exception as exc:  # whatever a program of somebody else may do
            raise ProcessorFault(
                f"the logits processor {self.name!r} failed: {type(exc).__name__}: {exc}"[:300]
            ) from exc


def _checked(answer: Mapping[int, float] | Collection[int], vocab_size: int) -> FunctionAnswer:
    """Raises ValueError or TypeError."""
    ids = np.fromiter(answer, np.int64, len(answer))
    if len(ids) and (ids.min() < 0 or ids.max() >= vocab_size):
        raise ValueError(f"token ids are 0 to {vocab_size - 1}, not {ids.min()} to {ids.max()}")
    if not isinstance(answer, Mapping):
        return FunctionAnswer(np.unique(ids), None)
    values = np.fromiter(answer.values(), np.float32, len(ids))
    if not (values < np.inf).all():
        raise ValueError("what is added to a logit must be a number or -inf")
    return FunctionAnswer(ids, values)
