"""Integers of a few bits in 32-bit words, transposed: the tensors of GPTQ and AWQ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from shared.checkpoint.weights.plain_tensors import PLAIN_DTYPES
from worker.engine.formats.linear_format import WeightParts, bits_in_codes, name_of_integers
from worker.engine.formats.scaled_weight import ScaledWeight
from worker.engine.formats.stored.bit_packing import WORD_BITS, unpack_words

_WEIGHT, _ZEROS, _SCALES, _GROUPS = "qweight", "qzeros", "scales", "g_idx"
_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # of eight values in a word of AWQ's, in their order


@dataclass(frozen=True, slots=True)
class GptqWords:
    """`LinearFormat`: a word holds values of neighbouring inputs of one output."""

    num_bits: int  # 2, 4 or 8
    group_size: int | None  # inputs; None: all
    zero_offset: int  # what is to be added to a stored zero point
    has_order: bool = False  # columns are in the order of activations

    marker = _WEIGHT
    ending = "weight"
    dtypes = frozenset({"I32"})
    suffixes: Sequence[str] = (_WEIGHT, _ZEROS, _SCALES, _GROUPS)

    @property
    def name(self) -> str:
        return name_of_integers(self.num_bits, self.group_size)

    @property
    def code_bits(self) -> float | None:
        num_bits = max(4, self.num_bits)
        return None if self.has_order else bits_in_codes(num_bits, self.group_size, has_zeros=True)

    def check(self, parts: WeightParts) -> tuple[int, ...]:
        per_word = WORD_BITS // self.num_bits
        num_words, out_features = parts.matrix(_WEIGHT, num_dims=2)
        in_features = num_words * per_word
        _check_groups(parts, in_features, out_features, self.group_size, per_word)
        if parts.has(_GROUPS):
            parts.expect(_GROUPS, ("I32", "I64"), (in_features,))
        return out_features, in_features

    def load(self, parts: WeightParts) -> ScaledWeight:
        codes = unpack_words(parts.get(_WEIGHT).T, self.num_bits)
        zeros = unpack_words(parts.get(_ZEROS), self.num_bits).T.to(torch.int32)
        zeros = (zeros + self.zero_offset) & ((1 << self.num_bits) - 1)
        scales = parts.scales(_SCALES).T
        return ScaledWeight(
            codes,
            scales,
            1,
            self.group_size or codes.shape[1],
            zeros.to(torch.float32),
            groups=parts.groups(_GROUPS, scales.shape[1], self.group_size),
        )


@dataclass(frozen=True, slots=True)
class AwqWords:
    """`LinearFormat`: a word holds values of eight outputs of one input, in an order of its own."""

    group_size: int | None

    marker = _WEIGHT
    ending = "weight"
    dtypes = frozenset({"I32"})
    suffixes: Sequence[str] = (_WEIGHT, _ZEROS, _SCALES)

    @property
    def name(self) -> str:
        return name_of_integers(4, self.group_size)

    @property
    def code_bits(self) -> float:
        return bits_in_codes(4, self.group_size, has_zeros=True)

    def check(self, parts: WeightParts) -> tuple[int, ...]:
        per_word = len(_AWQ_PLACES)
        in_features, num_words = parts.matrix(_WEIGHT, num_dims=2)
        out_features = num_words * per_word
        _check_groups(parts, in_features, out_features, self.group_size, per_word)
        return out_features, in_features

    def load(self, parts: WeightParts) -> ScaledWeight:
        codes = self._unpack(parts.get(_WEIGHT))
        return ScaledWeight(
            codes,
            parts.scales(_SCALES).T,
            1,
            self.group_size or codes.shape[1],
            self._unpack(parts.get(_ZEROS)).to(torch.float32),
        )

    def _unpack(self, words: torch.Tensor) -> torch.Tensor:
        values = unpack_words(words, 4).view(len(words), -1, len(_AWQ_PLACES))
        return values[..., list(_AWQ_PLACES)].flatten(1).T.contiguous()


def _check_groups(
    parts: WeightParts, in_features: int, out_features: int, group_size: int | None, per_word: int
) -> None:
    num_groups = -(-in_features // (group_size or in_features))
    asked_by = f"group_size={group_size or -1}"
    dtypes = tuple(sorted(PLAIN_DTYPES))
    parts.expect(_SCALES, dtypes, (num_groups, out_features), asked_by=asked_by)
    num_words = -(-out_features // per_word)
    parts.expect(_ZEROS, ("I32",), (num_groups, num_words), asked_by=asked_by)
