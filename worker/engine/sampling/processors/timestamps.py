"""Which tokens may follow in a transcript: timestamps come in pairs, and never go back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from shared.protocol.hearing_card import HearingCard
from worker.engine.request.req import Req
from worker.engine.sampling.logits_processor import LogitChange, LogitPlace, RowPoint, Vocabulary


class _State(NamedTuple):
    """What the last tokens of a window allow."""

    card: HearingCard
    is_first: bool  # nothing has been said
    may_be_text: bool
    may_be_timestamp: bool
    least: int  # no timestamp is before it


@dataclass(frozen=True, slots=True)
class _Timestamps:
    by_row: list[tuple[int, _State]]

    @property
    def changed_rows(self) -> Iterable[int]:
        return [row for row, _ in self.by_row]

    def apply(self, logits: torch.Tensor, place: LogitPlace) -> None:
        for row, state in self.by_row:
            _apply(logits[row], state)


class Timestamps:
    """Whisper's rules; what its files suppress is never chosen."""

    def wants(self, req: Req) -> bool:
        return req.window is not None and not req.window.detects_language

    def change(self, points: Sequence[RowPoint], vocabulary: Vocabulary) -> LogitChange | None:
        found = []
        for row, point in points:
            assert point.req.window is not None, "it wants those with one"
            ids = point.output_tail(point.num_output_tokens + len(point.draft_ids))
            found.append((row, _state(point.req.window.card, ids)))
        return _Timestamps(found)


def _state(card: HearingCard, ids: Sequence[int]) -> _State:
    """`ids`: of the window so far."""
    first = card.timestamp_id
    was = [token_id >= first for token_id in ids[-2:]]
    is_behind_one = bool(was) and was[-1]
    is_behind_pair = is_behind_one and (len(was) < 2 or was[-2])
    last = next((each for each in reversed(ids) if each >= first), None)
    least = first
    if last is not None:
        least = last if is_behind_one and not is_behind_pair else last + 1
    return _State(
        card,
        is_first=not ids,
        may_be_text=bool(ids) and (not is_behind_one or is_behind_pair),
        may_be_timestamp=not is_behind_pair,
        least=least,
    )


def _apply(row: torch.Tensor, state: _State) -> None:
    """[vocab_size] float32, changed in place."""
    card, first = state.card, state.card.timestamp_id
    row[[*card.suppressed_ids, card.no_timestamps_id]] = -torch.inf
    if state.is_first:
        row[list(card.begin_suppressed_ids)] = -torch.inf
        row[:first] = -torch.inf
        if card.max_first_tick is not None:
            row[first + card.max_first_tick + 1 :] = -torch.inf
    elif not state.may_be_text:
        row[: card.end_id] = -torch.inf
    row[first : state.least if state.may_be_timestamp else None] = -torch.inf
    logprobs = torch.log_softmax(row, dim=0)
    if logprobs[first:].logsumexp(dim=0) > logprobs[:first].amax():
        row[:first] = -torch.inf
