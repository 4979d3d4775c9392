"""What steps have cost: of requests that decode, and of a token of a prompt beside them."""

from __future__ import annotations

_WEIGHT = 0.25  # of the newest step, in a moving average
_OUTLIER = 4.0  # a step counts as at most so many times what was expected: somebody took the core


class StepCosts:
    """Moving averages in seconds, from the steps themselves.

    The time of a step without prefill is kept by the number of requests that decode in it, in
    powers of two, guesses included: how many of those there will be, nobody knows before. What a
    step with prefill took beyond that is shared among its prompt tokens.
    """

    def __init__(self) -> None:
        self._decode_s: dict[int, float] = {}  # by bit_length of the number of requests
        self._prefill_token_s: float | None = None

    @property
    def prefill_token_s(self) -> float | None:
        """Of one token of a prompt; None before there was any."""
        return self._prefill_token_s

    def decode_s(self, num_decoding: int) -> float | None:
        """Of a step in which so many requests decode: that of the nearest number that was seen, the
        smaller of two; None before there was any.
        """
        if not self._decode_s:
            return None
        size = num_decoding.bit_length()
        nearest = min(self._decode_s, key=lambda seen: (abs(seen - size), seen))
        return self._decode_s[nearest]

    def on_step(self, num_decoding: int, num_prefilled: int, elapsed_s: float) -> None:
        """`num_decoding` requests, and `num_prefilled` tokens of prompts."""
        if num_prefilled == 0:
            size = num_decoding.bit_length()
            self._decode_s[size] = _averaged(self._decode_s.get(size), elapsed_s)
            return
        decode_s = (self.decode_s(num_decoding) or 0.0) if num_decoding else 0.0
        prefill_s = max(0.0, elapsed_s - decode_s)
        self._prefill_token_s = _averaged(self._prefill_token_s, prefill_s / num_prefilled)


def _averaged(average: float | None, sample: float) -> float:
    if not average:
        return sample
    return average + _WEIGHT * (min(sample, _OUTLIER * average) - average)
