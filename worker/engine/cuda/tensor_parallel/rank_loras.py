"""Adapters of a model that ranks share: each has its share of one, and of the same ones."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from itertools import count

import numpy as np
import torch

from worker.engine.cuda.tensor_parallel.followers import Followers
from worker.engine.cuda.tensor_parallel.rank_orders import (
    NO_ROWS,
    DropAdapters,
    KeepAdapter,
    StoredPair,
)
from worker.engine.cuda.tensor_parallel.rank_share import RankShare
from worker.engine.lora.adapter_pool import MakeProjections
from worker.engine.lora.lora_adapter import LoraAdapter
from worker.engine.lora.lora_projection import LoraPair, LoraProjection, LoraWeights
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.model_lora import decoder_slices
from worker.engine.request.arrival import Adapter
from worker.engine.request.token_ranges import Ints

NO_ADAPTER = -1


class RankProjections(dict[str, LoraProjection]):
    """Rank 0's projections; by `number` the others know theirs."""

    def __init__(self, projections: dict[str, LoraProjection], number: int) -> None:
        super().__init__(projections)
        self.number = number


class RankLoras:
    """Rank 0's side: the others have an adapter as long as it is in use here."""

    def __init__(self, config: DecoderConfig, followers: Followers, make: MakeProjections) -> None:
        """`config`: of the whole model; `make`: of rank 0's share."""
        self._config = config
        self._followers = followers
        self._make = make
        self._numbers = count()
        self._dropped: deque[int] = deque()  # whenever the last one lets go of it

    def make(self, weights: LoraWeights) -> RankProjections:
        """A `MakeProjections`. Raises ConfigError."""
        decoder_slices(self._config, weights)  # they fit the model
        num_ranks = self._followers.group.size
        own, *others = (
            RankShare(self._config, rank, num_ranks).lora(weights) for rank in range(num_ranks)
        )
        made = self._make(own)
        assert isinstance(made, dict), "no library adds them"
        self._drop()
        projections = RankProjections(made, next(self._numbers))
        orders = [KeepAdapter(projections.number, _stored(each)) for each in others]
        self._followers.send_each(orders)
        weakref.finalize(projections, self._dropped.append, projections.number)
        return projections

    def _drop(self) -> None:
        """A number is never used again: that they are told late costs memory alone."""
        if numbers := [self._dropped.popleft() for _ in range(len(self._dropped))]:
            self._followers.send(DropAdapters(numbers))


class FollowerLoras:
    """Another rank's side."""

    def __init__(self, make: MakeProjections, dtype: torch.dtype) -> None:
        self._make = make
        self._dtype = dtype
        self._adapters: dict[int, LoraAdapter] = {}

    def keep(self, order: KeepAdapter) -> None:
        weights = {
            name: LoraPair(*(torch.from_numpy(each.copy()).view(self._dtype) for each in pair))
            for name, pair in order.pairs.items()
        }
        self._adapters[order.number] = LoraAdapter(str(order.number), self._make(weights))

    def drop(self, order: DropAdapters) -> None:
        for number in order.numbers:
            del self._adapters[number]

    def of_rows(self, numbers: Ints) -> list[LoraAdapter | None]:
        return [self._adapters.get(number) for number in numbers.tolist()]


def adapter_numbers(adapters: Sequence[Adapter | None]) -> Ints:
    """[num_rows], for the other ranks; nothing where no row has an adapter."""
    if not any(adapters):
        return NO_ROWS
    return np.array([_number_of(adapter) for adapter in adapters])


def _number_of(adapter: Adapter | None) -> int:
    if adapter is None:
        return NO_ADAPTER
    assert isinstance(adapter, LoraAdapter)
    assert isinstance(adapter.projections, RankProjections)
    return adapter.projections.number


def _stored(weights: LoraWeights) -> dict[str, StoredPair]:
    return {
        name: StoredPair(*(each.contiguous().view(torch.uint8).numpy() for each in pair))
        for name, pair in weights.items()
    }
