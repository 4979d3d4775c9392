"""Samplers that no threshold on logits can say: dynamic temperature, typical_p, XTC.

Each is defined as in llama.cpp. They act on one row, in this order, or in the one that a request
asks for: temperature (dynamic or not), min_p, top_k, top_p, typical_p, XTC; each sees what those
before it have left. All of it is a function of the row, the parameters and the position. On a GPU,
too, a row is computed alone, and what is summed up along it are integers: the rows beside it change
no bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from shared.protocol.sampling import SAMPLER_ORDER, SamplingParams
from worker.engine.request.req import Req
from worker.engine.sampling.counter_hash import CounterHash
from worker.engine.sampling.gumbel_max import GREEDY_TEMPERATURE
from worker.engine.sampling.logits_processor import LogitChange, LogitPlace, RowPoint, Vocabulary

XTC_DOMAIN = 0x6A66_7874
_ONE = float(1 << 42)  # of a share of probability, as an integer: 2 million of them can be summed
_ANY_ID = np.zeros(1, np.int64)
_NUM_BINS = 4096
_BINS_OF_ONE = 128  # nats; what is farther than 32 of them is in the last bin


def narrows(sampling: SamplingParams) -> bool:
    """Not where the likeliest token is taken anyway."""
    return sampling.is_narrowed and sampling.temperature > GREEDY_TEMPERATURE


def xtc_coin(seed: int, position: int) -> float:
    """In (0, 1), by the hash that draws, in a domain of its own."""
    value = int(CounterHash(1, XTC_DOMAIN).hash(seed, position, _ANY_ID)[0])
    return (value + 0.5) / float(1 << 32)


@dataclass(frozen=True, slots=True)
class Narrowing:
    """What becomes of one row of logits before its token is drawn at temperature 1."""

    sampling: SamplingParams
    excludes_top: bool  # XTC's coin says so

    @classmethod
    def at(cls, sampling: SamplingParams, position: int) -> Self:
        """`position`: of the token to be drawn."""
        chance = sampling.xtc_probability
        excludes = sampling.xtc_threshold <= 0.5 and chance > 0
        return cls(sampling, excludes and xtc_coin(sampling.seed, position) <= chance)

    def narrowed(self, logits: torch.Tensor) -> torch.Tensor:
        """[vocab_size] float32: logits / temperature, -inf where nothing may be drawn.

        Waits for no device. What is not finite at its largest stays so.
        """
        row = logits
        for name in self.sampling.samplers or SAMPLER_ORDER:
            row = self._after(name, row)
        return row

    def _after(self, sampler: str, row: torch.Tensor) -> torch.Tensor:
        sampling = self.sampling
        match sampler:
            case "temperature":
                return self._scaled(row)
            case "min_p" if sampling.min_p > 0:
                return _kept(row, row >= row.amax() + math.log(sampling.min_p))
            case "top_k" if 0 < sampling.top_k < len(row):
                return _kept(row, row >= row.topk(sampling.top_k).values[-1])
            case "top_p" if sampling.top_p < 1:
                return self._likeliest(row)
            case "typ_p" if sampling.typical_p < 1:
                return self._typical(row)
            case "xtc" if self.excludes_top:
                return self._without_top(row)
        return row

    def _likeliest(self, row: torch.Tensor) -> torch.Tensor:
        """The tokens with the largest logits, until they have the mass."""
        distance = row.amax().double() - row.double()
        shares = _as_integers(torch.softmax(row.double(), dim=0))
        wanted = self.sampling.top_p * shares.sum().double()
        return _kept(row, distance <= _least_enough(distance, shares, lambda mass: mass >= wanted))

    def _scaled(self, logits: torch.Tensor) -> torch.Tensor:
        temperature, span = self.sampling.temperature, self.sampling.dynatemp_range
        if span <= 0:
            return logits / temperature
        low, high = max(0.0, temperature - span), temperature + span
        num_candidates = (logits > -torch.inf).sum().double()
        most = torch.log(num_candidates.clamp(min=2.0))
        evenness = (_entropy(torch.log_softmax(logits.double(), dim=0)) / most).clamp(0.0, 1.0)
        found = low + (high - low) * evenness**self.sampling.dynatemp_exponent
        return logits / found.clamp(min=GREEDY_TEMPERATURE).float()

    def _typical(self, row: torch.Tensor) -> torch.Tensor:
        """The tokens whose surprise is nearest to the expected one, until they have the mass."""
        logprobs = torch.log_softmax(row.double(), dim=0)
        distance = (logprobs + _entropy(logprobs)).abs()
        shares = _as_integers(logprobs.exp())
        wanted = self.sampling.typical_p * shares.sum().double()
        return _kept(row, distance <= _least_enough(distance, shares, lambda mass: mass > wanted))

    def _without_top(self, row: torch.Tensor) -> torch.Tensor:
        """Keeps only the least likely of the tokens with the threshold's probability or more."""
        probs = torch.softmax(row.double(), dim=0)
        is_top = probs >= self.sampling.xtc_threshold
        least = torch.where(is_top, row, torch.inf).amin()
        return _kept(row, ~is_top | (row <= least))


@dataclass(frozen=True, slots=True)
class _Narrowed:
    by_row: list[tuple[int, Narrowing]]

    @property
    def changed_rows(self) -> Iterable[int]:
        return [row for row, _ in self.by_row]

    def apply(self, logits: torch.Tensor, place: LogitPlace) -> None:
        for row, narrowing in self.by_row:
            logits[row] = narrowing.narrowed(logits[row])


class Narrowings:
    """Dynamic temperature, `typical_p`, XTC, and samplers in another order: see `Narrowing`."""

    def wants(self, req: Req) -> bool:
        return narrows(req.sampling)

    def change(self, points: Sequence[RowPoint], vocabulary: Vocabulary) -> LogitChange | None:
        return _Narrowed(
            [(row, Narrowing.at(point.req.sampling, point.position)) for row, point in points]
        )


def _kept(row: torch.Tensor, is_kept: torch.Tensor) -> torch.Tensor:
    """The row as it is where its largest is not finite: that is told elsewhere."""
    return torch.where(is_kept | ~row.amax().isfinite(), row, -torch.inf)


def _entropy(logprobs: torch.Tensor) -> torch.Tensor:
    """In nats: [] float64."""
    return -torch.where(logprobs > -torch.inf, logprobs.exp() * logprobs, 0.0).sum()


def _as_integers(probs: torch.Tensor) -> torch.Tensor:
    """[vocab_size] int64, about `_ONE` together."""
    return probs.mul(_ONE).round().long()


def _least_enough(
    distance: torch.Tensor, shares: torch.Tensor, is_enough: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """The least distance up to which there is enough mass, else the largest: [] float64.

    `is_enough`: of masses, which are sums of integers as float64.
    """
    if distance.device.type != "cpu":  # the host does not wait to know how many are near
        return _least_enough_by_sorting(distance, shares, is_enough)
    bins = torch.nan_to_num(distance * _BINS_OF_ONE, torch.inf).clamp(0, _NUM_BINS - 1).long()
    mass = torch.bincount(bins, shares.double(), _NUM_BINS).cumsum(0)
    last_bin = min(int((~is_enough(mass)).sum()), _NUM_BINS - 1)
    before = float(mass[last_bin - 1]) if last_bin else 0.0
    inside = (bins == last_bin).nonzero()[:, 0]
    if not len(inside):  # of a row that is no distribution
        return distance.new_tensor(torch.inf)
    return _least_enough_by_sorting(
        distance[inside], shares[inside], lambda mass: is_enough(mass + before)
    )


def _least_enough_by_sorting(
    distance: torch.Tensor, shares: torch.Tensor, is_enough: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    rising, order = distance.sort(stable=True)
    return _first_where(is_enough(shares[order].cumsum(0).double()), rising)


def _first_where(is_reached: torch.Tensor, ordered: torch.Tensor) -> torch.Tensor:
    """The value at the first place where it is: [] of `ordered`; else the last one."""
    place = (~is_reached).sum().clamp(max=len(ordered) - 1)
    return ordered.gather(0, place[None])[0]
