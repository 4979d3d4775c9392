"""The seam to a grammar library: compile a grammar, then follow one output through it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from shared.protocol.sampling import Grammar

Bitmask = npt.NDArray[np.int32]  # [num_rows, ceil(vocab_size / 32)]; bit i % 32 of word i // 32


class GrammarMatcher(Protocol):
    """Where one output stands in its grammar: a function of its tokens alone."""

    @property
    def error(self) -> str:
        """Why nothing can follow any more; "" while all is well."""
        ...

    @property
    def is_terminated(self) -> bool:
        """The output is complete, and nothing but an end-of-turn token may follow."""
        ...

    def accept(self, token_id: int) -> bool:
        """Advance by a token. False when it may not come here: `error` says why, for ever."""
        ...

    def forced_ids(self) -> Sequence[int]:
        """Text that must come, as the tokenizer cuts it; another cut may be allowed, too."""
        ...

    def num_allowed(self, token_ids: Sequence[int]) -> int:
        """How many of them may come here, one after the other."""
        ...


class CompiledGrammar(Protocol):
    """A grammar, ready for any number of outputs."""

    def matcher(self) -> GrammarMatcher:
        """At the start of an output."""
        ...


class GrammarBackend(Protocol):
    """A grammar library with the model's vocabulary. `compile` is called in threads."""

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Raises GrammarError."""
        ...

    def fill_masks(self, matchers: Sequence[GrammarMatcher], bitmask: Bitmask) -> None:
        """Row i gets the tokens that may come next at matcher i, which this backend made.

        An end-of-turn token is among them exactly when the output may end here.
        """
        ...

    def fill_draft_masks(
        self, matcher: GrammarMatcher, draft_ids: Sequence[int], bitmask: Bitmask
    ) -> None:
        """Row i gets the tokens that may come behind the first i of the drafts, one row more than
        there are drafts. Behind one that may not come here, rows stay as they are.
        """
        ...
