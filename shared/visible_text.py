"""Visible text: what a client may see of a token sequence, growing token by token.

It depends on the tokens and the request's `TextParams` alone, so that two detokenizers, a replay
and the worker that decides on stop strings see the same. It holds back an incomplete character and
any suffix that may begin a stop string, and it only ever grows.
"""

from __future__ import annotations

from typing import Protocol

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from shared.protocol import TextParams


class IdDecoder(Protocol):
    """Ids to text, one at a time; None while a character is incomplete."""

    def step(self, token_id: int) -> str | None: ...


class TokenizerDecoder:
    """`tokenizers.DecodeStream`, primed with the end of the prompt."""

    def __init__(self, tokenizer: Tokenizer, params: TextParams) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(
            ids=list(params.prompt_tail), skip_special_tokens=params.skip_special_tokens
        )

    def step(self, token_id: int) -> str | None:
        return self._stream.step(self._tokenizer, token_id)


class VisibleText:
    """The visible text of one request.

    `text` is everything decoded and, after a stop, cut; `text[:visible_len]` may be shown.
    """

    def __init__(self, decoder: IdDecoder, params: TextParams) -> None:
        self._decoder = decoder
        self._stop = params.stop
        self._include_stop = params.include_stop
        self._min_tokens = params.min_tokens
        self._max_stop_len = max((len(s) for s in self._stop), default=0)
        self._stop_start = 0  # stop strings are looked for from here on
        self._text = ""
        self.visible_len = 0
        self.num_tokens = 0
        self.matched_stop: str | None = None

    @property
    def text(self) -> str:
        """The visible text so far."""
        return self._text[: self.visible_len]

    def add(self, token_id: int) -> bool:
        """Append one token. Returns whether it completed a stop string: the sequence ends here."""
        assert self.matched_stop is None, "nothing follows a stop string"
        self.num_tokens += 1
        new_text = self._decoder.step(token_id)
        if not self._stop:
            if new_text:
                self._text += new_text
                self.visible_len = len(self._text)
            return False
        if new_text:
            self._text += new_text
        if self.num_tokens <= self._min_tokens:
            self._stop_start = len(self._text)
        elif new_text and self._find_stop(len(self._text) - len(new_text)):
            return True
        self.visible_len = len(self._text) - self._held_back_len()
        return False

    def finish(self) -> None:
        """The sequence ended for another reason than a stop string: nothing is held back."""
        if self.matched_stop is None:
            self.visible_len = len(self._text)

    def _find_stop(self, new_start: int) -> bool:
        """Cut at the stop string that ends first; of several, the one that starts first."""
        search_from = max(self._stop_start, new_start - self._max_stop_len + 1)
        best: tuple[int, int, str] | None = None
        for stop in self._stop:
            start = self._text.find(stop, search_from)
            if start >= 0:
                candidate = (start + len(stop), start, stop)
                best = candidate if best is None else min(best, candidate)
        if best is None:
            return False
        end, start, stop = best
        self._text = self._text[: end if self._include_stop else start]
        self.visible_len = len(self._text)
        self.matched_stop = stop
        return True

    def _held_back_len(self) -> int:
        """Length of the longest suffix that is a proper prefix of a stop string."""
        searchable = len(self._text) - self._stop_start
        for length in range(min(self._max_stop_len - 1, searchable), 0, -1):
            suffix = self._text[-length:]
            if any(len(s) > length and s.startswith(suffix) for s in self._stop):
                return length
        return 0
