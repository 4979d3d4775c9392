"""Small numbers out of larger ones."""

from __future__ import annotations

import torch

WORD_BITS = 32
# Of four bits: a sign, two of exponent, one of mantissa.
E2M1_BOOK = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
E8M0_BIAS, E8M0_NAN = 127, 255


def unpack_words(words: torch.Tensor, num_bits: int) -> torch.Tensor:
    """[..., n] int32 -> [..., n * 32 / num_bits] uint8: of each word its lowest bits first."""
    shifts = torch.arange(0, WORD_BITS, num_bits, dtype=torch.int32)
    parts = (words.unsqueeze(-1) >> shifts) & ((1 << num_bits) - 1)
    return parts.to(torch.uint8).flatten(-2)


def unpack_nibbles(packed: torch.Tensor, *, high_first: bool = False) -> torch.Tensor:
    """[..., n] uint8 -> [..., 2 * n] uint8."""
    pair = [packed & 0xF, packed >> 4]
    return torch.stack(pair[::-1] if high_first else pair, dim=-1).flatten(-2)


def powers_of_two(exponents: torch.Tensor) -> torch.Tensor:
    """E8M0 in uint8 or its own dtype -> float32; 255 is not a number."""
    raw = exponents.view(torch.uint8)
    powers = torch.ldexp(torch.ones(raw.shape), raw.to(torch.int32) - E8M0_BIAS)
    return powers.masked_fill(raw == E8M0_NAN, torch.nan)
