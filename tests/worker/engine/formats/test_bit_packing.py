"""Small numbers out of larger ones, by the definition of their order."""

from __future__ import annotations

import pytest
import torch

from worker.engine.formats.block_codes import unpack_nibbles
from worker.engine.formats.stored.bit_packing import unpack_words


@pytest.mark.parametrize("num_bits", [2, 4, 8])
@pytest.mark.parametrize("is_turned", [False, True])
def test_lowest_bits_come_first(num_bits: int, is_turned: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(-(1 << 31), (1 << 31) - 1, (7, 5), generator=generator).to(torch.int32)
    words = words.T if is_turned else words
    expected = [
        [word >> shift & ((1 << num_bits) - 1) for word in row for shift in range(0, 32, num_bits)]
        for row in words.tolist()
    ]
    assert unpack_words(words, num_bits).tolist() == expected


@pytest.mark.parametrize("high_first", [False, True])
def test_both_halves_of_every_byte(high_first: bool) -> None:
    packed = torch.arange(256, dtype=torch.uint8).view(4, 64)
    halves = [
        [byte >> 4, byte & 15] if high_first else [byte & 15, byte >> 4] for byte in range(256)
    ]
    expected = torch.tensor(halves, dtype=torch.uint8).view(4, 128)
    assert torch.equal(unpack_nibbles(packed, high_first=high_first), expected)
    turned = unpack_nibbles(packed.T, high_first=high_first)
    assert torch.equal(turned, unpack_nibbles(packed.T.contiguous(), high_first=high_first))
