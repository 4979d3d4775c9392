from __future__ import annotations

import math
import random
import struct
from typing import Any

import numpy as np
import pytest

from worker.engine.sampling.counter_hash import SAMPLING_DOMAIN, CounterHash


def murmur3_32(data: bytes, seed: int = 0) -> int:
    """MurmurHash3_x86_32 by its definition, for whole words."""
    mask = 0xFFFFFFFF
    state = seed
    for (word,) in struct.iter_unpack("<I", data):
        word = word * 0xCC9E2D51 & mask
        word = (word << 15 | word >> 17) & mask
        state ^= word * 0x1B873593 & mask
        state = (state << 13 | state >> 19) & mask
        state = (state * 5 + 0xE6546B64) & mask
    state ^= len(data)
    state = (state ^ state >> 16) * 0x85EBCA6B & mask
    state = (state ^ state >> 13) * 0xC2B2AE35 & mask
    return state ^ state >> 16


def reference_hash(seed: int, position: int, token_id: int) -> int:
    words = (seed & 0xFFFFFFFF, seed >> 32, position, token_id, SAMPLING_DOMAIN)
    return murmur3_32(struct.pack("<5I", *words))


def test_the_reference_is_murmur3() -> None:
    # Published vectors of MurmurHash3_x86_32.
    assert murmur3_32(b"") == 0
    assert murmur3_32(b"", seed=1) == 0x514E28B7
    assert murmur3_32(b"\xff\xff\xff\xff") == 0x76293B50
    assert murmur3_32(b"\x21\x43\x65\x87") == 0xF55B516B
    assert murmur3_32(b"aaaa", seed=0x9747B28C) == 0x5A97808A


def test_the_hash_agrees_with_the_reference_to_the_bit() -> None:
    source = random.Random(1)
    vocab_size = 200_000
    counter_hash = CounterHash(vocab_size)
    for seed in (0, 1, 2**32 - 1, 2**32, 2**64 - 1, *(source.getrandbits(64) for _ in range(20))):
        position = source.choice([0, 1, source.randrange(10**6)])
        ids = [0, 1, vocab_size - 1, *(source.randrange(vocab_size) for _ in range(20))]
        hashes = counter_hash.hash(seed, position, np.array(ids))
        assert hashes.tolist() == [reference_hash(seed, position, each) for each in ids]


def test_vectors_that_every_backend_must_reproduce() -> None:
    hashes = CounterHash(50_000).hash(0x0123456789ABCDEF, 1000, np.array([0, 1, 2, 49_999]))
    assert hashes.tolist() == [4273564302, 2820073932, 1234252819, 3595150695]


class FixedHash(CounterHash):
    """Gives the hashes that a test asks for."""

    def __init__(self, hashes: list[int]) -> None:
        super().__init__(len(hashes))
        self._hashes = np.array(hashes, np.uint32)

    def hash(self, seed: int, position: int, token_ids: object) -> Any:
        return self._hashes.copy()


def test_noise_is_finite_and_exact_at_both_ends() -> None:
    hashes = [0, 1, 2**31, 2**32 - 2, 2**32 - 1]
    noise = FixedHash(hashes).gumbel(0, 0, np.arange(5))
    expected = [-math.log(-math.log((each + 0.5) / 2**32)) for each in hashes]
    assert noise.dtype == np.float32
    assert noise.tolist() == pytest.approx(expected, rel=1e-5)


def test_noise_has_gumbels_mean_and_variance() -> None:
    noise = CounterHash(1_000_000).gumbel(5, 9, np.arange(1_000_000)).astype(np.float64)
    assert noise.mean() == pytest.approx(0.5772, abs=0.005)
    assert noise.var() == pytest.approx(math.pi**2 / 6, abs=0.02)
