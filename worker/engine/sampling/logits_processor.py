"""One kind of change to logits before a token is drawn: the seam that each kind fills."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch

from worker.engine.grammar.grammar_matcher import Bitmask, GrammarBackend
from worker.engine.request.req import Req
from worker.engine.request.schedule_batch import SamplePoint

RowPoint: TypeAlias = tuple[int, SamplePoint]  # a row of logits, and what is asked for there


class LogitPlace(Protocol):
    """Where the logits of a step are: on the host, or on a device."""

    def put(self, values: torch.Tensor) -> torch.Tensor:
        """What the host has, there."""
        ...

    def forbid(self, logits: torch.Tensor, rows: list[int], bitmask: Bitmask) -> None:
        """Make -inf of what a bitmask leaves out.

        `logits` [num_rows, vocab_size] float32; `bitmask` [num_masked, ceil(vocab_size / 32)], of
        `rows`.
        """
        ...


class LogitChange(Protocol):
    """What one processor changes in one step. Host memory."""

    @property
    def changed_rows(self) -> Iterable[int]:
        """Rows of logits, in any order, perhaps several times."""
        ...

    def apply(self, logits: torch.Tensor, place: LogitPlace) -> None:
        """`logits` [num_rows, vocab_size] float32, at `place`, changed where they are."""
        ...


@dataclass(frozen=True, slots=True)
class TokenPairs:
    """Which logits a change is of, an entry each; a `LogitChange` of single tokens adds `apply`."""

    rows: torch.Tensor  # [num_pairs] int64
    token_ids: torch.Tensor  # [num_pairs] int64

    @property
    def changed_rows(self) -> Iterable[int]:
        rows: list[int] = self.rows.tolist()
        return rows


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What the tokens to choose from are."""

    size: int  # of the model's head
    grammars: GrammarBackend | None = None  # that made the matchers of requests


class LogitsProcessor(Protocol):
    """Keeps nothing between steps: a change is a function of requests and their tokens."""

    def wants(self, req: Req) -> bool:
        """Whether it may ever change something for this request: the same at any time."""
        ...

    def change(self, points: Sequence[RowPoint], vocabulary: Vocabulary) -> LogitChange | None:
        """The change of those rows whose requests it wants, at least one. None: nothing in this
        step.
        """
        ...
