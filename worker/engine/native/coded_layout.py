"""Which quantised weights the C++ decoder multiplies as they are, and what it needs to know."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from worker.engine.formats.block_codes import BlockCodes
from worker.engine.formats.scaled_weight import (
    GroupSteps,
    InputCodes,
    ScaledWeight,
    is_floating_point,
)

# `Layout` of linear_weights.h; 0 is bfloat16.
CODES8 = 1
CODES4 = 2
INT8 = 3
INT4 = 4
INT6 = 5
INTEGER_LAYOUTS = (INT8, INT4, INT6)

_SIGN = 0x80
_LONE_SIGN_INT8 = 0xC3  # upper byte of -128
_LONE_SIGN_FLOAT8 = 0x80  # of -0
_MAX_SUM = (1 << 31) - 1
_LARGEST_INPUT = 128
_NUM_FACTORS = 4096
_QUAD = 4  # inputs that are multiplied at once


@dataclass(frozen=True, slots=True)
class Integers:
    """What a layout of integers holds, as in linear_weights.h."""

    zero_point: int
    span_size: int
    rounds_rows: bool
    input_scale: float  # 0: what the inputs need


@dataclass(frozen=True, slots=True, eq=False)
class CodedLayout:
    """A weight [out_features, in_features] in codes. Nothing of it is rounded but the numbers
    of a book that bfloat16 has not.
    """

    layout: int
    codes: torch.Tensor | BlockCodes  # [out_features, in_features] uint8, a code a byte
    code_book: torch.Tensor | None  # uint8, see coded_weights.h; None: of integers
    group_size: int  # inputs that share a scale
    scales: torch.Tensor  # [out_features, num_groups] float32, or as many as steps say
    zeros: torch.Tensor | None  # the same shape, int8; not of CODES8
    minima: torch.Tensor | None = None  # the shape of scales, float32: subtracted of scaled values
    steps: GroupSteps | None = None
    integers: Integers | None = None  # of INTEGER_LAYOUTS
    order: torch.Tensor | None = None  # [in_features] int64: the input that each code is for


def coded_layout(weight: ScaledWeight) -> CodedLayout | None:
    """None where there is no layout for it: it has to be made dense."""
    in_features = weight.stored.shape[-1]
    group_size = min(weight.block_columns, in_features)
    ordered = _by_place(weight)
    if ordered is None or group_size % 2 or in_features % 2:
        return None
    weight, order = ordered
    if weight.book is not None:
        layout = _of_book(weight, weight.book, group_size)
    elif is_floating_point(weight.stored):
        layout = None if weight.zeros is not None else _of_float8(weight, group_size)
    else:
        layout = _of_integers(weight, group_size)
    has_more = weight.minima is not None or weight.steps is not None
    if layout is None or (layout.minima is not None and has_more):
        return None
    minima = weight.minima if layout.minima is None else layout.minima
    return replace(layout, minima=minima, steps=weight.steps, order=order)


def integer_layout(weight: ScaledWeight, inputs: InputCodes) -> CodedLayout | None:
    """For inputs that are rounded to `inputs`. None where codes are no integers of 8 bits, or their
    groups hold no whole quads.
    """
    in_features = weight.stored.shape[-1]
    group_size = min(weight.block_columns, in_features)
    span_size = _span_size(group_size, in_features, inputs.size)
    has_quads = span_size == in_features or span_size % _QUAD == 0
    is_integer = weight.book is None and not is_floating_point(weight.stored)
    ordered = _by_place(weight)
    if ordered is None or not (is_integer and has_quads):
        return None
    weight, order = ordered
    zeros = torch.zeros(1, 1) if weight.zeros is None else weight.zeros
    whole_zeros = zeros.to(torch.int32)
    least, largest = _range(weight.stored)
    lowest, highest = (int(each) for each in torch.aminmax(whole_zeros))
    num_codes = largest - least + 1
    if num_codes > 256 or not torch.equal(whole_zeros.float(), zeros):
        return None
    if span_size * _LARGEST_INPUT * max(largest - lowest, highest - least) > _MAX_SUM:
        return None
    zero_point = (lowest + highest) // 2
    if highest - zero_point > 127:
        return None
    own_zeros = None if lowest == highest else (whole_zeros - zero_point).to(torch.int8)
    return CodedLayout(
        INT4 if num_codes <= 16 else INT6 if num_codes <= 64 else INT8,
        _above(weight.stored, least),
        None,
        group_size,
        weight.scales,
        own_zeros,
        weight.minima,
        weight.steps,
        Integers(zero_point - least, span_size, inputs.size is None, inputs.scale or 0.0),
        order,
    )


def _span_size(group_size: int, in_features: int, size: int | None) -> int:
    """Groups of weights are parts of what is rounded together, or the other way round."""
    if size is None or size >= in_features:
        return group_size
    return size if group_size in (in_features, group_size // size * size) else group_size


def _by_place(weight: ScaledWeight) -> tuple[ScaledWeight, torch.Tensor | None] | None:
    """With scales of each row, and columns in groups by their places; in which order, where it is
    another than theirs. None for what is not one matrix, or has groups of other sizes.
    """
    if weight.is_turned or len(weight.stored.shape) != 2:
        return None
    weight = weight.by_row()
    if weight.groups is None:
        return weight, None
    groups, order = torch.sort(weight.groups, stable=True)
    if not torch.equal(groups, torch.arange(len(groups)) // weight.block_columns):
        return None
    codes = weight.stored
    stored = codes.with_columns(order) if isinstance(codes, BlockCodes) else codes[:, order]
    return replace(weight, stored=stored, groups=None), order


def _range(codes: torch.Tensor | BlockCodes) -> tuple[int, int]:
    """The least number and the largest; of blocks those that there may be."""
    if isinstance(codes, BlockCodes):
        return -codes.zero, codes.num_codes - codes.zero - 1
    least, largest = torch.aminmax(codes)
    return int(least), int(largest)


def _above(codes: torch.Tensor | BlockCodes, least: int) -> torch.Tensor | BlockCodes:
    """Numbers without signs, as blocks have them of themselves."""
    return codes if isinstance(codes, BlockCodes) else _lessened(codes, least, torch.uint8)


def _of_book(weight: ScaledWeight, book: torch.Tensor, group_size: int) -> CodedLayout | None:
    if weight.zeros is not None or len(book) > 16:
        return None
    factor = _factor(book)
    codes, scales = _above(weight.stored, 0), weight.scales / factor
    return CodedLayout(CODES4, codes, _book4(book * factor), group_size, scales, None)


def _factor(book: torch.Tensor) -> float:
    """What a book is multiplied with so that bfloat16 has its numbers, or others that are nearest:
    of FP4 these are thirds, of NF4 they have more bits.
    """
    numbers = book[book != 0.0].to(torch.float64)
    factors = 1.0 + torch.arange(_NUM_FACTORS, dtype=torch.float64) / _NUM_FACTORS
    wanted = factors[:, None] * numbers
    errors = (wanted.to(torch.bfloat16) / wanted - 1.0).abs()
    return float(factors[errors.sum(1).argmin()])


def _of_float8(weight: ScaledWeight, group_size: int) -> CodedLayout:
    magnitudes = torch.arange(_SIGN, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    book = _book8(magnitudes.nan_to_num(0.0), _LONE_SIGN_FLOAT8)
    return CodedLayout(
        CODES8, weight.codes.view(torch.uint8), book, group_size, weight.scales, None
    )


def _of_integers(weight: ScaledWeight, group_size: int) -> CodedLayout | None:
    """In four bits where all codes lie within sixteen, whatever their checkpoint has them in."""
    scales = weight.scales
    if weight.zeros is None:
        return _of_plain(weight.stored, scales, group_size)
    zeros = weight.zeros.to(torch.int16)
    if not torch.equal(zeros.to(torch.float32), weight.zeros):
        return None
    if bool((zeros == zeros[0, 0]).all()):
        return _of_plain(weight.stored, scales, group_size, int(zeros[0, 0]))
    layout = _of_four_bits(weight.stored, zeros, scales, group_size)
    if layout is not None:
        return layout
    codes = weight.codes.to(torch.int16)
    columns = zeros.repeat_interleave(group_size, dim=1)[:, : codes.shape[1]]
    layout = _of_plain(codes - columns, scales, group_size)
    return layout or _with_minima(codes, zeros, scales, group_size)


def _of_plain(
    codes: torch.Tensor | BlockCodes, scales: torch.Tensor, group_size: int, zero: int = 0
) -> CodedLayout | None:
    """With one zero point for all."""
    least, largest = _range(codes)
    low, high = least - zero, largest - zero
    if low < -128 or high > 127:
        return None
    if high - low < 16:
        book = _book4(torch.arange(low, low + 16))
        return CodedLayout(CODES4, _above(codes, least), book, group_size, scales, None)
    book = _book8(torch.arange(_SIGN), _LONE_SIGN_INT8)
    if isinstance(codes, BlockCodes):
        codes = codes.lessened(zero)
    else:
        codes = _with_signs(_lessened(codes, zero, torch.int8))
    return CodedLayout(CODES8, codes, book, group_size, scales, None)


def _lessened(codes: torch.Tensor, number: int, dtype: torch.dtype) -> torch.Tensor:
    """`codes` less `number`, which all fit into the eight bits of `dtype`: in eight bits, where
    they and the number are in as many, for a difference that fits does not see its way wrap.
    """
    limits = torch.iinfo(codes.dtype)
    if number and not limits.min <= number <= limits.max:
        codes = codes.to(torch.int16)
    if number:
        codes = codes - number
    return codes.view(dtype) if codes.itemsize == 1 else codes.to(dtype)


def _with_signs(codes: torch.Tensor) -> torch.Tensor:
    """Of int8: the size in seven bits and the sign in the eighth, which alone stands for -128.

    In place but for two copies: all that is done to a weight is done while somebody waits for it.
    """
    signs = codes >> 7
    sizes = codes ^ signs
    sizes.sub_(signs).bitwise_and_(~_SIGN)
    return sizes.bitwise_or_(signs.bitwise_and_(-_SIGN)).view(torch.uint8)


def _with_minima(
    codes: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor, group_size: int
) -> CodedLayout | None:
    """With zero points in all of eight bits: their products with scales, rounded to float32 where
    scales have more than 16 bits, as sums are.
    """
    middle = 128 if int(codes.min()) >= 0 else 0
    layout = _of_plain(codes - middle, scales, group_size)
    return None if layout is None else replace(layout, minima=(zeros - middle) * scales)


def _of_four_bits(
    codes: torch.Tensor | BlockCodes, zeros: torch.Tensor, scales: torch.Tensor, group_size: int
) -> CodedLayout | None:
    """With zero points: what is looked up is the difference, in five bits and a sign."""
    least, largest = _range(codes)
    base = -8 if least < 0 else 0
    zeros = zeros - base
    if least < base or largest - base > 15:
        return None
    if int(zeros.min()) < 0 or int(zeros.max()) > 16:
        return None
    book = _bytes(torch.cat([torch.arange(16), torch.arange(-16, 0)]))
    if isinstance(codes, BlockCodes) and least != base:
        codes = codes.unpack()
    return CodedLayout(CODES4, _above(codes, base), book, group_size, scales, zeros.to(torch.int8))


def _book4(values: torch.Tensor) -> torch.Tensor:
    """Sixteen values two times."""
    padded = torch.nn.functional.pad(values.float(), (0, 16 - len(values)))
    return _bytes(padded.repeat(2))


def _book8(magnitudes: torch.Tensor, lone_sign: int) -> torch.Tensor:
    """Lower bytes, upper bytes, and the upper byte of a sign without a magnitude."""
    halves = _bytes(magnitudes).view(-1, 2)
    return torch.cat(
        [halves[:, 0], halves[:, 1], torch.tensor([lone_sign], dtype=torch.uint8)]
    ).contiguous()


def _bytes(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.bfloat16).view(torch.uint8).clone()
