"""A step, or the part of it that the GPU's memory has room for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import msgspec

from worker.engine.cuda.tensor_parallel.rank_orders import RunStep
from worker.engine.images import ImageSpan, cut_spans
from worker.engine.request.arrival import Adapter
from worker.engine.request.schedule_batch import SamplePoint


@dataclass(frozen=True, slots=True)
class StepPiece:
    """Consecutive tokens of a step, and what is chosen behind them.

    Pieces are computed in their order, as prefill chunks are: a token reads what the pieces before
    its own have written. A piece may be begun again: until its tokens are kept (`RankRunner.keep`,
    behind which nothing is allocated) it writes what it would write the second time, and reads
    nothing of that. No row is chosen for in one piece and awaited in a later one: only the last
    token of a row is awaited, and only with guesses, which follow known tokens, has a row a sample
    before its last token.
    """

    step: RunStep
    points: Sequence[SamplePoint]  # [num_samples]
    adapters: Sequence[Adapter | None]  # [num_rows]
    images: Sequence[ImageSpan] = ()
    is_part: bool = False  # other pieces of the step are computed before it is collected

    @property
    def num_tokens(self) -> int:
        return self.step.plan.num_tokens

    def halves(self) -> tuple[Self, Self] | None:
        """None of a single token. Both bring the page table's changes: the first may fail again."""
        plan = self.step.plan
        if plan.num_tokens == 1:
            return None
        middle = plan.num_tokens // 2
        first, second = plan.part(0, middle), plan.part(middle, plan.num_tokens)
        return (
            type(self)(
                msgspec.structs.replace(self.step, plan=first),
                self.points[: first.num_samples],
                self.adapters[: len(first.rows)],
                cut_spans(self.images, 0, middle),
                is_part=True,
            ),
            type(self)(
                msgspec.structs.replace(self.step, plan=second),
                self.points[first.num_samples :],
                self.adapters[-len(second.rows) :],
                cut_spans(self.images, middle, plan.num_tokens),
                is_part=True,
            ),
        )
