"""What steps have cost: of requests that decode, and of a token of a prompt beside them."""

from __future__ import annotations

_WEIGHT = 0.25  # of the newest step, in a moving average
_OUTLIER = 4.0  # a step counts as at most so many times what was expected: somebody took the core


class StepCosts:
    """Moving averages in seconds, from the steps themselves.

    The time of a step without prefill is kept by the number of its tokens, in powers of two. What
    a step with prefill took beyond that is shared among its prompt tokens.
    """

    def __init__(self) -> None:
        self._decode_s: dict[int, float] = {}  # by bit_length of the number of tokens
        self._prefill_token_s: float | None = None

    @property
    def prefill_token_s(self) -> float | None:
        """Of one token of a prompt; None before there was any."""
        return self._prefill_token_s

    def decode_s(self, num_tokens: int) -> float | None:
        """Of a step in which requests decode `num_tokens`: that of the nearest size that was seen,
        the smaller of two; None before there was any.
        """
        if not self._decode_s:
            return None
        size = num_tokens.bit_length()
        nearest = min(self._decode_s, key=lambda seen: (abs(seen - size), seen))
        return self._decode_s[nearest]

    def on_step(self, num_decoded: int, num_prefilled: int, elapsed_s: float) -> None:
        """`num_decoded` tokens of requests that decode, guesses included."""
        if num_prefilled == 0:
            size = num_decoded.bit_length()
            self._decode_s[size] = _averaged(self._decode_s.get(size), elapsed_s)
            return
        decode_s = (self.decode_s(num_decoded) or 0.0) if num_decoded else 0.0
        prefill_s = max(0.0, elapsed_s - decode_s)
        self._prefill_token_s = _averaged(self._prefill_token_s, prefill_s / num_prefilled)


def _averaged(average: float | None, sample: float) -> float:
    if not average:
        return sample
    return average + _WEIGHT * (min(sample, _OUTLIER * average) - average)
