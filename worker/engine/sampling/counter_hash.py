"""Random numbers without a state: a hash of seed, position and token id.

The number for a token depends on nothing else: not on the batch, the worker, or how many numbers
were drawn before. That is what lets another worker go on with the same draws.

The hash is MurmurHash3 (x86, 32 bits, seed 0) of five little-endian words: the low and the high
half of the request's seed, the absolute position of the token to be sampled (prompt included), the
token id, and a domain that separates uses.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

SAMPLING_DOMAIN = 0x6A66_7361

UInt32Array = npt.NDArray[np.uint32]

_C1 = 0xCC9E2D51
_C2 = 0x1B873593
_NUM_BYTES = 20
_MASK = 0xFFFFFFFF


class CounterHash:
    """Hashes and Gumbel noise for the ids of one vocabulary; what depends on ids alone is kept."""

    def __init__(self, vocab_size: int, domain: int = SAMPLING_DOMAIN) -> None:
        token_ids = np.arange(vocab_size, dtype=np.uint32)
        token_ids *= np.uint32(_C1)
        token_ids = (token_ids << np.uint32(15)) | (token_ids >> np.uint32(17))
        token_ids *= np.uint32(_C2)
        self._mixed_ids: UInt32Array = token_ids  # [vocab_size], the fourth word, mixed
        self._mixed_domain = np.uint32(_mix(domain))

    def hash(self, seed: int, position: int, token_ids: npt.NDArray[np.int64]) -> UInt32Array:
        """[num_token_ids] uint32."""
        return self._finish(seed, position, self._mixed_ids[token_ids])

    def hash_all(self, seed: int, position: int) -> UInt32Array:
        """[vocab_size] uint32."""
        return self._finish(seed, position, self._mixed_ids.copy())

    def _finish(self, seed: int, position: int, hashes: UInt32Array) -> UInt32Array:
        """In place, from the mixed token ids."""
        state = _absorb(_absorb(_absorb(0, seed & _MASK), seed >> 32 & _MASK), position & _MASK)
        hashes ^= np.uint32(state)
        _rotate_and_add(hashes)
        hashes ^= self._mixed_domain
        _rotate_and_add(hashes)
        hashes ^= np.uint32(_NUM_BYTES)
        hashes ^= hashes >> np.uint32(16)
        hashes *= np.uint32(0x85EBCA6B)
        hashes ^= hashes >> np.uint32(13)
        hashes *= np.uint32(0xC2B2AE35)
        hashes ^= hashes >> np.uint32(16)
        return hashes

    def gumbel(
        self, seed: int, position: int, token_ids: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float32]:
        """Gumbel noise, [num_token_ids]."""
        return gumbel_of(self.hash(seed, position, token_ids))


def gumbel_of(hashes: UInt32Array) -> npt.NDArray[np.float32]:
    """Noise g = -log(-log(u)) with u = (hash + 0.5) / 2**32; always finite, and growing with it.

    The inner logarithm is taken in double precision: near u = 1 single would round it to zero.
    """
    uniform = hashes.astype(np.float64)
    uniform += 0.5
    uniform *= 2.0**-32
    exponential = np.log(uniform, out=uniform).astype(np.float32)
    np.negative(exponential, out=exponential)
    np.log(exponential, out=exponential)
    return np.negative(exponential, out=exponential)


def _rotate_and_add(hashes: UInt32Array) -> None:
    """The end of a murmur round, in place."""
    high = hashes << np.uint32(13)
    hashes >>= np.uint32(19)
    hashes |= high
    hashes *= np.uint32(5)
    hashes += np.uint32(0xE6546B64)


def _mix(word: int) -> int:
    word = word * _C1 & _MASK
    word = (word << 15 | word >> 17) & _MASK
    return word * _C2 & _MASK


def _absorb(state: int, word: int) -> int:
    state ^= _mix(word)
    state = (state << 13 | state >> 19) & _MASK
    return (state * 5 + 0xE6546B64) & _MASK
