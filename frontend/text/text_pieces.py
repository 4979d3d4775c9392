"""Cuts a text where its tokens end, so that every frontend cuts it in the same places."""

from __future__ import annotations

from typing import NamedTuple

from tokenizers import Tokenizer

from shared.protocol.reply import TextParams
from shared.token_log.visible_text import TokenizerDecoder, VisibleText


class Piece(NamedTuple):
    """New text, and the output tokens since the last piece that it comes from."""

    text: str
    tokens: slice


class TextPieces:
    """Decodes again what the detokenizer has decoded: its chunks are cut by chance, tokens are not.

    A piece is what one token made visible; the last may be what was held back until the end.
    """

    def __init__(self, tokenizer: Tokenizer, params: TextParams) -> None:
        self._visible = VisibleText(TokenizerDecoder(tokenizer, params), params)
        self._num_tokens = 0
        self._num_emitted = 0
        self._emitted_len = 0  # code points

    @property
    def text(self) -> str:
        """The text of all pieces."""
        return self._visible.text

    def add(self, token_ids: list[int]) -> list[Piece]:
        """The pieces that new tokens make."""
        pieces = []
        for token_id in token_ids:
            self._visible.add(token_id)
            self._num_tokens += 1
            pieces += self._take()
        return pieces

    def finish(self) -> list[Piece]:
        """What was held back: one piece or none."""
        self._visible.finish()
        return self._take()

    def _take(self) -> list[Piece]:
        text = self._visible.text_from(self._emitted_len)
        if not text:
            return []
        piece = Piece(text, slice(self._num_emitted, self._num_tokens))
        self._emitted_len += len(text)
        self._num_emitted = self._num_tokens
        return [piece]
