"""Integers of a few bits in 32-bit words, transposed: the tensors of GPTQ and AWQ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shared.checkpoint.formats.linear_format import bits_in_codes, name_of_integers
from shared.checkpoint.formats.tensor_heads import WeightHeads
from shared.checkpoint.weights.plain_tensors import PLAIN_DTYPES

WEIGHT, ZEROS, SCALES, GROUPS = "qweight", "qzeros", "scales", "g_idx"
_WORD_BITS = 32
_AWQ_PER_WORD = 8


@dataclass(frozen=True, slots=True)
class GptqWords:
    """`LinearFormat`: a word holds values of neighbouring inputs of one output."""

    num_bits: int  # 2, 4 or 8
    group_size: int | None  # inputs; None: all
    zero_offset: int  # what is to be added to a stored zero point

    marker = WEIGHT
    ending = "weight"
    dtypes = frozenset({"I32"})
    suffixes: Sequence[str] = (WEIGHT, ZEROS, SCALES, GROUPS)

    @property
    def name(self) -> str:
        return name_of_integers(self.num_bits, self.group_size)

    @property
    def code_bits(self) -> float:
        return bits_in_codes(max(4, self.num_bits), self.group_size, has_zeros=True)

    def check(self, heads: WeightHeads) -> tuple[int, ...]:
        per_word = _WORD_BITS // self.num_bits
        num_words, out_features = heads.matrix(WEIGHT, num_dims=2)
        in_features = num_words * per_word
        _check_groups(heads, in_features, out_features, self.group_size, per_word)
        if heads.has(GROUPS):
            heads.expect(GROUPS, ("I32", "I64"), (in_features,))
        return out_features, in_features


@dataclass(frozen=True, slots=True)
class AwqWords:
    """`LinearFormat`: a word holds values of eight outputs of one input, in an order of its own."""

    group_size: int | None

    marker = WEIGHT
    ending = "weight"
    dtypes = frozenset({"I32"})
    suffixes: Sequence[str] = (WEIGHT, ZEROS, SCALES)

    @property
    def name(self) -> str:
        return name_of_integers(4, self.group_size)

    @property
    def code_bits(self) -> float:
        return bits_in_codes(4, self.group_size, has_zeros=True)

    def check(self, heads: WeightHeads) -> tuple[int, ...]:
        in_features, num_words = heads.matrix(WEIGHT, num_dims=2)
        out_features = num_words * _AWQ_PER_WORD
        _check_groups(heads, in_features, out_features, self.group_size, _AWQ_PER_WORD)
        return out_features, in_features


def _check_groups(
    heads: WeightHeads, in_features: int, out_features: int, group_size: int | None, per_word: int
) -> None:
    num_groups = -(-in_features // (group_size or in_features))
    asked_by = f"group_size={group_size or -1}"
    dtypes = tuple(sorted(PLAIN_DTYPES))
    heads.expect(SCALES, dtypes, (num_groups, out_features), asked_by=asked_by)
    num_words = -(-out_features // per_word)
    heads.expect(ZEROS, ("I32",), (num_groups, num_words), asked_by=asked_by)
