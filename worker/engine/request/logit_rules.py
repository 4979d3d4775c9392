"""What a request says of single tokens: biases, the ones it allows, the ones it bans."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shared.protocol.sampling import SamplingParams

Ids = npt.NDArray[np.int64]


class LogitRules:
    """The rules of one request, in the form in which a row of logits takes them.

    Frozen: which words are banned at a place is a function of the output before it.
    """

    def __init__(self, params: SamplingParams) -> None:
        bias = params.logit_bias
        self.bias_ids: Ids = np.array([token_id for token_id, _ in bias], np.int64)
        self.bias_values = np.array([value for _, value in bias], np.float32)
        self.allowed_ids: Ids = np.array(params.allowed_token_ids, np.int64)  # empty: all
        # Token sequences that must not come out whole: the banned last ids by what precedes them.
        self._last_ids: dict[tuple[int, ...], list[int]] = {}
        for word in params.bad_words:
            self._last_ids.setdefault(word[:-1], []).append(word[-1])
        self._prefix_lens = sorted({len(prefix) for prefix in self._last_ids})

    @classmethod
    def maybe_of(cls, params: SamplingParams) -> LogitRules | None:
        """None for a request without rules: it must cost nothing."""
        has_rules = params.logit_bias or params.allowed_token_ids or params.bad_words
        return cls(params) if has_rules else None

    @property
    def max_prefix_len(self) -> int:
        """How much of the output `banned_ids` looks at."""
        return self._prefix_lens[-1] if self._prefix_lens else 0

    def banned_ids(self, output_tail: Sequence[int]) -> list[int]:
        """The ids that would complete a bad word, given the end of the output."""
        banned: list[int] = []
        for length in self._prefix_lens:
            if length <= len(output_tail):
                prefix = tuple(output_tail[len(output_tail) - length :])
                banned += self._last_ids.get(prefix, ())
        return banned
