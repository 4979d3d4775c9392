"""Small numbers out of larger ones."""

from __future__ import annotations

import torch

from worker.engine.formats.block_codes import unpack_nibbles

# Of four bits: a sign, two of exponent, one of mantissa.
E2M1_BOOK = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
E8M0_BIAS, E8M0_NAN = 127, 255


def unpack_words(words: torch.Tensor, num_bits: int) -> torch.Tensor:
    """[..., n] int32 -> [..., n * 32 / num_bits] uint8: of each word its lowest bits first."""
    packed = words.contiguous().view(torch.uint8)  # the lowest byte first
    match num_bits:
        case 8:
            return packed
        case 4:
            return unpack_nibbles(packed)
        case 2:
            return unpack_quarters(packed)
    raise AssertionError(f"no format has values of {num_bits} bits in words")


# What is done to a byte is done to a wider integer, whose bytes are then the values: all that a
# weight is unpacked by reads and writes a byte a value, and no more.
def unpack_quarters(packed: torch.Tensor) -> torch.Tensor:
    """[..., n] uint8 -> [..., 4 * n] uint8: of each byte its lowest bits first."""
    wide = packed.contiguous().to(torch.int32)
    wide = (wide << 12).bitwise_or_(wide)
    wide = (wide << 6).bitwise_or_(wide)
    return wide.bitwise_and_(0x03030303).view(torch.uint8)


def powers_of_two(exponents: torch.Tensor) -> torch.Tensor:
    """E8M0 in uint8 or its own dtype -> float32; 255 is not a number."""
    raw = exponents.view(torch.uint8)
    powers = torch.ldexp(torch.ones(raw.shape), raw.to(torch.int32) - E8M0_BIAS)
    return powers.masked_fill(raw == E8M0_NAN, torch.nan)
