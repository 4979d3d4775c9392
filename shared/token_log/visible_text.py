"""Visible text: what a client may see of a token sequence, growing token by token.

It depends on the tokens and the request's `TextParams` alone, so that two detokenizers, a replay
and the worker that decides on stop strings see the same. It holds back an incomplete character and
any suffix that may begin a stop string, and it only ever grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from shared.protocol.reply import TextParams

# An incomplete character spans fewer tokens than this; what is longer is shown as it is, so that
# a run of undecodable or invisible tokens costs the same for each token.
_MAX_PENDING = 16


class IdDecoder(Protocol):
    """Ids to text, one at a time."""

    def step(self, token_id: int) -> str | None:
        """The text that this id completes; None while a character is incomplete."""

    def flush(self) -> str:
        """The end of the text: an incomplete character, as the tokenizer shows it."""


class TokenizerDecoder:
    """Decodes as `tokenizer.decode` does the whole, behind the end of the prompt.

    Never raises: an id that the tokenizer does not know has no text, and where more tokens would
    change text already given out (byte fallback does that), the new tokens are decoded alone.
    """

    def __init__(self, tokenizer: Tokenizer, params: TextParams) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = params.skip_special_tokens
        self._shown_ids = frozenset(params.shown_ids if params.skip_special_tokens else ())
        self._context: list[int] = []  # the ids whose text was given out last
        self._pending: list[int] = []  # ids since then
        self._stream = self._new_stream()
        for token_id in params.prompt_tail:
            self.step(token_id)

    def step(self, token_id: int) -> str | None:
        if token_id in self._shown_ids:
            return self.flush() + (self._tokenizer.id_to_token(token_id) or "")
        try:
            text: str | None = self._stream.step(self._tokenizer, token_id)
        except TypeError:  # not a uint32: in no vocabulary
            return None
        except Exception:  # all that tokenizers raises: "Invalid prefix encountered"
            self._pending.append(token_id)
            return self._resynchronize()
        pending = self._pending
        pending.append(token_id)
        if text:
            self._context = pending
            self._pending = []
            return text
        if len(pending) >= _MAX_PENDING:
            return self._resynchronize()
        return None

    def flush(self) -> str:
        return self._resynchronize() if self._pending else ""

    def _resynchronize(self) -> str:
        """The text of the pending ids as it is now; a new stream goes on behind the context."""
        before = self._decode(self._context)
        text = self._decode(self._context + self._pending)
        grows = text.startswith(before)
        text = text[len(before) :] if grows else self._decode(self._pending)
        self._pending = []
        self._stream = self._new_stream()
        return text

    def _decode(self, token_ids: list[int]) -> str:
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=self._skip_special_tokens)
        return text

    def _new_stream(self) -> DecodeStream:
        return DecodeStream(ids=self._context, skip_special_tokens=self._skip_special_tokens)


class VisibleText:
    """The visible text of one request.

    Invariant: all decoded text is the visible text followed by what is held back, which is the
    longest suffix that could begin a stop string. So a stop string that ends in new text starts in
    the held back text or in the new text, never before.
    """

    def __init__(self, decoder: IdDecoder, params: TextParams) -> None:
        self._decoder = decoder
        self._stop = params.stop
        self._include_stop = params.include_stop
        self._min_tokens = params.min_tokens
        self._prefixes_by_end = _prefixes_by_end(params.stop)
        self._parts: list[str] = []  # the visible text
        self._held_back = ""
        self.is_finished = False  # nothing more is shown
        self.visible_len = 0
        self.num_tokens = 0
        self.matched_stop: str | None = None

    @property
    def text(self) -> str:
        """The visible text so far."""
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    def text_from(self, offset: int) -> str:
        """`text[offset:]`, at the cost of that much text."""
        wanted = self.visible_len - offset
        if wanted <= 0:
            return ""
        parts = self._parts
        idx = len(parts) - 1
        num_found = len(parts[idx])
        while num_found < wanted:
            idx -= 1
            num_found += len(parts[idx])
        return "".join(parts[idx:])[num_found - wanted :]

    def add(self, token_id: int) -> bool:
        """Append one token. Returns whether it completed a stop string: the sequence ends here.

        What follows a stop string, or `finish`, adds nothing.
        """
        if self.is_finished:
            return False
        self.num_tokens += 1
        new_text = self._decoder.step(token_id)
        if not new_text:
            return False
        if not self._stop:
            self._parts.append(new_text)
            self.visible_len += len(new_text)
            return False
        text = self._held_back + new_text
        if self.num_tokens > self._min_tokens and self._cut_at_stop(text, len(self._held_back)):
            return True
        self._show(text, len(text) - self._held_back_len(text))
        return False

    def extend(self, token_ids: Sequence[int]) -> None:
        """Append several as `add` appends one; after a stop string the rest adds nothing."""
        if self._stop or self.is_finished:
            for token_id in token_ids:
                self.add(token_id)
            return
        self.num_tokens += len(token_ids)
        for token_id in token_ids:
            if new_text := self._decoder.step(token_id):
                self._parts.append(new_text)
                self.visible_len += len(new_text)

    def finish(self) -> None:
        """The sequence ended for another reason than a stop string: nothing is held back."""
        if not self.is_finished:
            self.is_finished = True
            text = self._held_back + self._decoder.flush()
            self._show(text, len(text))

    def _show(self, text: str, shown_len: int) -> None:
        if shown_len:
            self._parts.append(text[:shown_len])
            self.visible_len += shown_len
        self._held_back = text[shown_len:]

    def _cut_at_stop(self, text: str, num_old: int) -> bool:
        """Cut at the stop string that ends first; of several, the one that starts first.

        Only those count that end beyond the `num_old` characters that were there before.
        """
        best: tuple[int, int, str] | None = None
        for stop in self._stop:
            start = text.find(stop, max(0, num_old - len(stop) + 1))
            if start >= 0:
                candidate = (start + len(stop), start, stop)
                best = candidate if best is None else min(best, candidate)
        if best is None:
            return False
        end, start, stop = best
        self._show(text, end if self._include_stop else start)
        self._held_back = ""
        self.matched_stop = stop
        self.is_finished = True
        return True

    def _held_back_len(self, text: str) -> int:
        """Length of the longest suffix that is a proper prefix of a stop string."""
        for prefix in self._prefixes_by_end.get(text[-1:], ()):
            if text.endswith(prefix):
                return len(prefix)
        return 0


def _prefixes_by_end(stop: tuple[str, ...]) -> dict[str, list[str]]:
    """The proper prefixes of the stop strings by their last character, longest first."""
    prefixes = {s[:length] for s in stop for length in range(1, len(s))}
    by_end: dict[str, list[str]] = {}
    for prefix in sorted(prefixes, key=len, reverse=True):
        by_end.setdefault(prefix[-1], []).append(prefix)
    return by_end
